"""Hostile config files, weights and run folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.torture.hostile import Attack, Place, tensors

SHORT = (
    "--epochs 1 --batch-size 16 --limit-train 16 --attacks clean --width 4 --set model.stages=1 --threads 1"
)
_NETWORK = "--model preactresnet18 --dataset digits --width 4 --set model.stages=1"
NETWORK = _NETWORK.split()


def yaml_text(place: Place) -> str:
    """A config file that asks for something it must not get."""
    laughs = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 30))
    code = f"touch {place.canary}"
    texts = {
        "code": f"model: os:system\nset: {{model.command: '{code}'}}\n",
        "code in a group": f"network: {{model: 'os:system'}}\nthreat: {{set: {{model.command: '{code}'}}}}\n",
        "code per method": f"methods: {{sora: {{model: 'os:mkdir', set: {{model.path: {place.canary}}}}}}}\n",
        "code as recipe": f"recipe: {place.canary}\nmodel: subprocess:run\n",
        "python tag": f"epochs: !!python/object/apply:os.system ['{code}']\n",
        "python name": "epochs: !!python/name:os.system\n",
        "python module": "epochs: !!python/module:antigravity\n",
        "laughs": laughs + "set: *a29\n",
        "laughs in a setting": laughs.replace("a0:", "dataset:", 1) + "epochs: *a29\n",
        "itself": "set: &a {model.x: *a}\n",
        "deep": "set: " + "[" * 100_000,
        "deep map": "set: " + "{a: " * 5_000,
        "long number": "epochs: " + "9" * 100_000 + "\n",
        "hexadecimal": "epochs: 0x" + "f" * 100_000 + "\n",
        "sexagesimal": "epochs: " + ":".join(["59"] * 5_000) + "\n",
        "binary": "model: !!binary " + "A" * 1000 + "\n",
        "date": "epochs: 2001-12-14\n",
        "zeros": "\x00" * 100,
        "merge": "<<: [{epochs: 1}, {epochs: x}]\nepochs: .nan\n",
        "twice": "epochs: 1\nepochs: x\n",
        "list": "- 1\n- 2\n",
        "nothing": "",
        "keys": "? [1, 2]\n: 3\n",
        "null key": "null: 1\n",
        "set of set": "set: !!set {a, b}\n",
        "out": f"out: {place.victim}\n",
        "data": f"data_dir: {place.victim / 'data'}\ndataset: 'folder:{place.victim}'\n",
        "init": f"init: {place.victim / 'file'}\n",
        "init device": "init: /dev/zero\n",
        "types": "epochs: [1]\nset: 3\nattacks: {a: b}\n",
        "groups": "data: 3\nnetwork: [1]\n",
    }
    return texts[str(place.choose(*texts))]


def config_file(place: Place) -> list[str]:
    path = place.work / "x.yaml"
    path.write_text(yaml_text(place))
    verb = place.choose("train", "compare", "train")
    if verb == "compare":
        return [
            "compare",
            "--methods",
            "fgsm",
            "--config",
            str(path),
            "--out",
            "runs",
            *SHORT.split(),
            "--quiet",
        ]
    return ["train", "--config", str(path), "--out", "run", *SHORT.split(), "--quiet"]


def config_that_names_places(place: Place) -> list[str]:
    """No place is named on the command line: the file may not choose one outside."""
    path = place.work / "x.yaml"
    key, value = place.rng.choice(
        [("out", place.victim / "run"), ("out", "../canary"), ("data_dir", place.canary)]
    )
    path.write_text(f"{key}: {value}\n" + ("dataset: 'npz:/does/not/exist'\n" if key == "data_dir" else ""))
    place.note = f"{key}: {value}"
    named = ["--out", "run"] if key == "data_dir" else []
    return ["train", "--config", str(path), *named, *SHORT.split(), "--quiet"]


def no_config_file(place: Place) -> list[str]:
    path = place.work / "x.yaml"
    kind = place.choose("fifo", "/dev/zero", "/dev/urandom", "loop", "folder")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("x.yaml" if kind == "loop" else str(kind))
    return ["train", "--config", str(path), "--out", "run", *SHORT.split(), "--quiet"]


def config_of_a_run(place: Place) -> list[str]:
    run = place.unfinished()
    text = yaml_text(place)
    (run / "config.yaml").write_text(
        text if place.rng.random() < 0.5 else (run / "config.yaml").read_text() + text
    )
    return _use(place, run)


_CHECKPOINT = '{"format": "sora-checkpoint-1"}'


def headers() -> dict[str, bytes]:
    """Safetensors files that lie."""
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}

    def lying(**changes: object) -> bytes:
        return tensors(json.dumps({"w": {**entry, **changes}}).encode(), bytes(16))

    return {
        "length": tensors(b"{}", length=2**63 - 1),
        "length of the file": tensors(b"{}", length=1000),
        "minus one": tensors(b"{}", length=2**64 - 1),
        "depth": tensors(b'{"w":' + b"[" * 200_000),
        "shape": lying(shape=[2**62, 2**62]),
        "negative shape": lying(shape=[-4]),
        "empty shape": lying(shape=[0, 2**63]),
        "offsets": lying(data_offsets=[0, 2**40]),
        "reversed": lying(data_offsets=[16, 0]),
        "dtype": lying(dtype="PICKLE"),
        "object": lying(dtype="O"),
        "metadata": tensors(json.dumps({"__metadata__": {"sora": "[" * 100_000}}).encode()),
        "metadata type": tensors(json.dumps({"__metadata__": {"sora": _CHECKPOINT}}).encode()),
        "metadata list": tensors(json.dumps({"__metadata__": {"sora": "[]"}}).encode()),
        "spaces": tensors(b"{" + b" " * 10**7 + b"}"),
        "names": tensors(json.dumps({f"w{i}": {**entry, "shape": [0], "data_offsets": [0,
        0]} for i in range(10**5)}).encode()),
        "empty": b"",
        "zip": b"PK\x03\x04" + bytes(100),
    }  # fmt: skip


def _weights(place: Place) -> bytes:
    kinds = headers()
    kind = str(place.choose(*kinds, "pickle", "torch"))
    if kind == "pickle":
        return place.evil_pickle()
    if kind == "torch":
        import io

        import torch

        from tests.torture.hostile import Evil

        file = io.BytesIO()
        torch.save({"w": Evil(place.canary)}, file)
        return file.getvalue()
    return kinds[kind]


def weights_file(place: Place) -> list[str]:
    path = place.work / "w.safetensors"
    path.write_bytes(_weights(place))
    if place.rng.random() < 0.5:
        return ["train", "--init", str(path), "--out", "run", *SHORT.split(), "--quiet"]
    return ["evaluate", "--weights", str(path), *NETWORK, "--attacks", "clean", "--limit", "10", "--quiet"]


def no_weights_file(place: Place) -> list[str]:
    path = place.work / "w.safetensors"
    kind = place.choose("fifo", "/dev/zero", "loop", "/")
    os.mkfifo(path) if kind == "fifo" else path.symlink_to("w.safetensors" if kind == "loop" else str(kind))
    return ["evaluate", "--weights", str(path), *NETWORK, "--attacks", "clean", "--limit", "10", "--quiet"]


def weights_of_a_run(place: Place) -> list[str]:
    run = place.run()
    name = str(place.choose("model.safetensors", "snapshots"))
    targets = sorted((run / "snapshots").iterdir()) if name == "snapshots" else [run / name]
    content = _weights(place)
    for path in targets:
        path.write_bytes(content)
    step = str(int(targets[0].stem.split("-")[1])) if name == "snapshots" else ""
    at = ["--at", step] if step else []
    return ["probe", "eps-curve", str(run), "--limit", "4", *at] if at else _use(place, run)


def checkpoint_of_a_run(place: Place) -> list[str]:
    run = place.unfinished()
    content = _weights(place)
    for path in (run / "checkpoints").iterdir():
        path.unlink()
        path.write_bytes(content)
    return _resume(run)


JSONS = (
    "[" * 200_000, '{"a":' * 100_000, "NaN", "null", "[]", "{}", "1" * 10_000, '{"name": 3}', "\x00", '"x"',
    '{"format": 99999999999999999999}', "[[]]", "[{}]", '[{"fingerprint": 3, "threat": 3}]', "[1, 2]",
    "{" * 10,
    '{"threat": []}', '[{"threat": {"norm": "linf", "eps": "x"}}]',
)  # fmt: skip


def json_of_a_run(place: Place) -> list[str]:
    run = place.run()
    name = str(place.choose("model.json", "summary.json", "evaluation.json"))
    (run / name).write_text(str(place.choose(*JSONS)))
    return _use(place, run)


def network_of_a_run(place: Place) -> list[str]:
    """A model.json that names code, or a network that fits no machine."""
    run = place.run()
    content = json.loads((run / "model.json").read_text())
    changes = (
        {"name": "os:system", "options": {"command": f"touch {place.canary}"}}, {"width": 10**9},
        {"width": "x"},
        {"num_classes": 10**12}, {"num_classes": -1}, {"name": 3}, {"options": 3},
        {"options": {"stages": 10**9}},
        {"mean": "x", "std": "y"}, {"in_channels": 10**9}, {"image_size": 10**9}, {"classes": 3},
        {"name": "../x"},
    )  # fmt: skip
    change = place.rng.choice(changes)
    place.note = str(change)[:80]
    (run / "model.json").write_text(json.dumps(content | change))
    return _use(place, run)


def log_of_a_run(place: Place) -> list[str]:
    run = place.unfinished()
    name = str(place.choose("metrics", "evals", "events", "monitors"))
    lines = (
        "[" * 200_000 + "}",
        '{"step": "x"}',
        "\x00" * 1000,
        '{"a": ' + "9" * 10_000 + "}",
        "{}",
        "null",
        "3}",
    )
    path = run / f"{name}.jsonl"
    text = str(place.choose(*lines)) + "\n"
    path.write_text(text + path.read_text() if place.rng.random() < 0.5 else text)
    return (
        _resume(run)
        if place.rng.random() < 0.5
        else ["probe", str(place.choose("traces", "training")), str(run)]
    )


def links_in_a_run(place: Place) -> list[str]:
    """Files and folders of a run that lead elsewhere: nothing may be written or cut there."""
    run = place.unfinished()
    kind = str(place.choose("metrics.jsonl", "events.jsonl", "evals.jsonl", "checkpoints", "snapshots",
    "model.json",
                            "summary.json", "model.safetensors", "evaluation.json"))  # fmt: skip
    path = run / kind
    if path.is_dir():
        for file in path.iterdir():
            file.rename(place.victim / file.name)
        path.rmdir()
        path.symlink_to(place.victim)
    else:
        path.unlink(missing_ok=True)
        path.symlink_to(place.victim / str(place.choose("file", "new")))
    return _resume(run)


def hard_files_in_a_run(place: Place) -> list[str]:
    """FIFOs and folders where files belong."""
    run = place.unfinished() if place.rng.random() < 0.5 else place.run()
    name = str(place.choose("config.yaml", "metrics.jsonl", "model.json", "summary.json", "evaluation.json"))
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name) if place.choose("fifo", "folder") == "fifo" else (run / name).mkdir()
    return _use(place, run)


def _resume(run: Path) -> list[str]:
    return ["train", "--resume", "--out", str(run), "--quiet"]


def _use(place: Place, run: Path) -> list[str]:
    """Any command that reads a run."""
    commands = (
        _resume(run),
        ["evaluate", str(run), "--attacks", "clean", "--threads", "1", "--quiet"],
        ["probe", "eps-curve", str(run), "--limit", "4", "--threads", "1"],
        ["probe", "traces", str(run)],
        ["data", "show", "--run", str(run), "--out", "x.png"],
    )
    return commands[place.rng.randrange(len(commands))]


ATTACKS: list[Attack] = [
    config_file, config_file, config_that_names_places, no_config_file, config_of_a_run, config_of_a_run,
    weights_file,
    weights_file, no_weights_file, weights_of_a_run, checkpoint_of_a_run, json_of_a_run, json_of_a_run,
    network_of_a_run, log_of_a_run, links_in_a_run, links_in_a_run, hard_files_in_a_run, config_file,
]  # fmt: skip
