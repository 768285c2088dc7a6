"""Hostile config files, weights and run folders."""

import io
import json
import os
import re
from pathlib import Path

from tests.data import formats
from tests.torture.hostile import SCRIPT, TINY, Attack, Place, no_file, tensors

SHORT = f"{TINY} --limit-train 16 --quiet".split()
EVALUATE = "--model preactresnet18 --dataset digits --width 4 --set model.stages=1 --attacks clean --limit 10"


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
        "twice": "epochs: 1\nepochs: 1\n",
        "twice in a group": "network: {width: 4, width: 4}\n",
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
    return texts[place.choose(*texts)]


def config_file(place: Place) -> list[str]:
    path = place.work / "x.yaml"
    path.write_text(yaml_text(place))
    place.refuse = "twice" in place.note
    if place.choose("train", "compare", "train") == "compare":
        return ["compare", "--methods", "fgsm", "--config", str(path), "--out", "runs", *SHORT]
    return ["train", "--config", str(path), "--out", "run", *SHORT]


def config_that_names_places(place: Place) -> list[str]:
    """No place is named on the command line: the file may not choose one outside."""
    path = place.work / "x.yaml"
    places = [("out", place.victim / "run"), ("out", "../canary"), ("data_dir", place.canary)]
    key, value = place.rng.choice(places)
    path.write_text(f"{key}: {value}\n" + ("dataset: 'npz:/does/not/exist'\n" if key == "data_dir" else ""))
    place.note = f"{key}: {value}"
    named = ["--out", "run"] if key == "data_dir" else []
    return ["train", "--config", str(path), *named, *SHORT]


def no_config_file(place: Place) -> list[str]:
    path = place.work / "x.yaml"
    no_file(place, path, "fifo", "folder", "loop", "/dev/zero", "/dev/urandom")
    return ["train", "--config", str(path), "--out", "run", *SHORT]


def config_of_a_run(place: Place) -> list[str]:
    run = place.unfinished()
    kept = (run / "config.yaml").read_text() if place.rng.random() < 0.5 else ""
    (run / "config.yaml").write_text(kept + yaml_text(place))
    return _use(place, run)


def headers() -> dict[str, bytes]:
    """Safetensors files that lie."""
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    nothing = entry | {"shape": [0], "data_offsets": [0, 0]}

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
        "metadata type": tensors(b'{"__metadata__": {"sora": "{\\"format\\": \\"sora-checkpoint-1\\"}"}}'),
        "metadata list": tensors(b'{"__metadata__": {"sora": "[]"}}'),
        "spaces": tensors(b"{" + b" " * 10**7 + b"}"),
        "names": tensors(json.dumps({f"w{i}": nothing for i in range(10**5)}).encode()),
        "empty": b"",
        "zip": b"PK\x03\x04" + bytes(100),
    }


def _weights(place: Place) -> bytes:
    kinds = headers()
    kind = place.choose(*kinds, "pickle", "torch", "shared", "itself")
    if kind == "pickle":
        return place.evil_pickle()
    if kind in kinds:
        return kinds[kind]
    import torch

    content: dict[str, object] = {"w": formats.Evil(place.canary) if kind == "torch" else torch.zeros(4)}
    if kind == "itself":
        content["state_dict"] = content
    for _ in range(60 if kind == "shared" else 0):  # as many paths lead through it as 2 to the power of 60
        content = {"model": content, "state_dict": content}
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def weights_file(place: Place) -> list[str]:
    path = place.work / "w.safetensors"
    path.write_bytes(_weights(place))
    place.refuse = True
    if place.rng.random() < 0.5:
        return ["train", "--init", str(path), "--out", "run", *SHORT]
    return ["evaluate", "--weights", str(path), *EVALUATE.split(), "--quiet"]


def no_weights_file(place: Place) -> list[str]:
    path = place.work / "w.safetensors"
    no_file(place, path, "fifo", "/dev/zero", "loop", "/")
    return ["evaluate", "--weights", str(path), *EVALUATE.split(), "--quiet"]


def weights_of_a_run(place: Place) -> list[str]:
    run = place.run()
    content = _weights(place)
    if place.choose("model", "snapshots") == "model":
        (run / "model.safetensors").write_bytes(content)
        return _use(place, run)
    snapshots = sorted((run / "snapshots").iterdir())
    for path in snapshots:
        path.write_bytes(content)
    step = str(int(snapshots[0].stem.split("-")[1]))
    return ["probe", "eps-curve", str(run), "--limit", "4", "--at", step]


def checkpoint_of_a_run(place: Place) -> list[str]:
    run = place.unfinished()
    content = _weights(place)
    for path in (run / "checkpoints").iterdir():
        path.unlink()
        path.write_bytes(content)
    return _resume(run)


_JSONS = """NaN null [] {} "x" [[]] [{}] {"name":3} {"format":99999999999999999999} {"threat":[]} [1,2]
{{{{{{{{{{ [{"fingerprint":3,"threat":3}] [{"threat":{"norm":"linf","eps":"x"}}]"""
JSONS = (*_JSONS.split(), "[" * 200_000, '{"a":' * 100_000, "1" * 10_000, "\x00")


def json_of_a_run(place: Place) -> list[str]:
    run = place.run()
    name = place.choose("model.json", "summary.json", "evaluation.json")
    (run / name).write_text(place.choose(*JSONS))
    return _use(place, run)


def large_file_of_a_run(place: Place) -> list[str]:
    """Files that cost thirty times their size as Python objects, and one that is nothing but size."""
    run, size = place.run(), place.number(4, 99) * 10**6
    kind = place.choose("lists", "log", "sparse")
    if kind == "lists":
        name = place.choose("evaluation.json", "summary.json", "model.json")
        (run / name).write_text(f"[{'[],' * (size // 3)}[]]")
    elif kind == "log":
        path = run / f"{place.choose('metrics', 'evals', 'events', 'monitors')}.jsonl"
        path.write_text(path.read_text() + '{"step":1}\n' * (size // 11))
    else:
        (run / place.choose("model.safetensors", "summary.json", "config.yaml", "metrics.jsonl")).touch()
        os.truncate(run / place.note.split("'")[-2], 400 << 30)
    return _use(place, run)


NAME = f"\x1b[2J\u202e{SCRIPT}</script>"
NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "-1", "true", "null", '"x"', "[]")
_LEAF = re.compile(r"""(?<=[ :\[])(?:(?P<number>-?[\d.e-]+)|"[^"\\]+")(?=[,\n\]}])""")
_CHECKSUM = re.compile(r""",\s*"(?:checksum|blake2b|sha256)": "[^"]*\"""")


def value_of_a_run(place: Place) -> list[str]:
    """Any number or name in a file becomes something else, and the file loses its checksum."""
    run = place.run() if place.rng.random() < 0.7 else place.unfinished()
    names = ("model.json", "summary.json", "summary.json", "metrics.jsonl", "evals.jsonl", "monitors.jsonl")
    path = run / place.choose(*(name for name in names if (run / name).exists()))
    text = _CHECKSUM.sub("", path.read_text())
    leaf = place.rng.choice(list(_LEAF.finditer(text)))
    value = place.choose(*NUMBERS) if leaf["number"] else json.dumps(NAME)
    place.note += f" for {leaf[0]} at {leaf.start()}"
    path.write_text(text[: leaf.start()] + value + text[leaf.end() :])
    return _use(place, run)


def network_of_a_run(place: Place) -> list[str]:
    """A model.json that names code, or a network that fits no machine."""
    run = place.run()
    content = json.loads((run / "model.json").read_text())
    large = 10**9
    changes = [{key: large} for key in ("width", "in_channels", "image_size")]
    changes += [{"width": "x"}, {"num_classes": 10**12}, {"num_classes": -1}, {"name": 3}, {"name": "../x"}]
    changes += [{"options": 3}, {"options": {"stages": large}}, {"mean": "x", "std": "y"}, {"classes": 3}]
    changes += [{"name": "os:system", "options": {"command": f"touch {place.canary}"}}]
    change = place.rng.choice(changes)
    place.note = str(change)[:80]
    (run / "model.json").write_text(json.dumps(content | change))
    return _use(place, run)


def log_of_a_run(place: Place) -> list[str]:
    run = place.unfinished()
    name = place.choose("metrics", "evals", "events", "monitors")
    lines = ['{"step": "x"}', "{}", "null", "3}", "\x00" * 1000]
    lines += [f'{{"a": {"9" * 10_000}}}', "[" * 200_000 + "}"]
    path = run / f"{name}.jsonl"
    kept = path.read_text() if place.rng.random() < 0.5 else ""
    path.write_text(f"{place.choose(*lines)}\n{kept}")
    probe = ["probe", place.choose("traces", "training"), str(run)]
    return _resume(run) if place.rng.random() < 0.5 else probe


def links_in_a_run(place: Place) -> list[str]:
    """Files and folders of a run that lead elsewhere: nothing may be written or cut there."""
    run = place.unfinished()
    kinds = ["metrics.jsonl", "events.jsonl", "evals.jsonl", "checkpoints", "snapshots"]
    path = run / place.choose(*kinds, "model.json", "summary.json", "model.safetensors", "evaluation.json")
    if path.is_dir():
        for file in path.iterdir():
            file.rename(place.victim / file.name)
        path.rmdir()
        path.symlink_to(place.victim)
    else:
        path.unlink(missing_ok=True)
        path.symlink_to(place.victim / place.choose("file", "new"))
    return _resume(run)


def hard_files_in_a_run(place: Place) -> list[str]:
    """FIFOs and folders where files belong."""
    run = place.unfinished() if place.rng.random() < 0.5 else place.run()
    name = place.choose("config.yaml", "metrics.jsonl", "model.json", "summary.json", "evaluation.json")
    (run / name).unlink(missing_ok=True)
    no_file(place, run / name, "fifo", "folder")
    return _use(place, run)


def _resume(run: Path) -> list[str]:
    return ["train", "--resume", "--out", str(run), "--quiet"]


def _use(place: Place, run: Path) -> list[str]:
    """Any command that reads a run."""
    commands = ["train --resume --quiet --out RUN", "evaluate RUN --attacks clean --threads 1 --quiet"]
    commands += ["probe eps-curve RUN --limit 4 --threads 1", "probe traces RUN"]
    commands += ["data show --run RUN --out x.png", "report RUN", "compare RUN --out table", "compare RUN"]
    commands += ["evaluate RUN --attacks clean --threads 1 --card --per-class", "probe training RUN"]
    return [word.replace("RUN", str(run)) for word in place.rng.choice(commands).split()]


ATTACKS: list[Attack] = [
    *(config_file, config_that_names_places, no_config_file, config_of_a_run, weights_file, no_weights_file),
    *(weights_of_a_run, checkpoint_of_a_run, json_of_a_run, network_of_a_run, log_of_a_run, links_in_a_run),
    *(hard_files_in_a_run, large_file_of_a_run, value_of_a_run),
    # Those with most variants, more often.
    *(config_file, config_file, config_of_a_run, weights_file, json_of_a_run, links_in_a_run),
    *(large_file_of_a_run, *4 * [value_of_a_run]),
]
