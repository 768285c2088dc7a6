"""The run folder, key by key, and how runs are found and named."""

import json
import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import sora
from sora.cli import main
from sora.errors import RunError, UserError
from sora.experiments.compare import compare
from sora.probes._records import read_runs
from sora.runs import FORMAT, LogName, RunFolder, find_runs, unique_labels
from sora.settings import Request, Settings
from sora.training import train
from tests.probes.toys import write_run
from tests.runs.conftest import flip
from tests.training.helpers import BuildSettings

METRICS = {"step", "epoch", "attempt", "loss", "accuracy", "pert_align", "linearity", "step_size", "lr"}
SUMMARY = {
    "method", "dataset", "model", "seed", "versions", "train_seconds", "images_per_second", "peak_memory_mb",
    "weights", "threat", "accuracy", "attacks", "pert_align", "co", "machine", "settings_hash",
    "data", "format",
}  # fmt: skip
ATTACK = {"norm", "eps", "steps", "step_size", "restarts", "n", "low", "high"}


def record_of(attack: str, accuracy: float) -> dict[str, Any]:
    """The least that a record of an evaluation holds."""
    return {
        "threat": {"norm": "linf", "eps": 0.1},
        "accuracy": {attack: accuracy},
        "attacks": {attack: {"n": 80, "low": 0.0, "high": 1.0}},
        "predictions": {attack: ""},
        "num_classes": 10,
        "zero_gradients": 0.0,
    }


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("events", '{"step": 3}'),
        ("events", '{"step": "x", "event": "alarm"}'),
        ("evals", '{"step": 3}'),
        ("evals", '{"step": 3, "accuracy": {"clean": "high"}}'),
        ("metrics", '{"loss": 1.0}'),
        ("metrics", '{"step": true}'),
        ("metrics", '{"step": 3, "loss": [1.0]}'),
        ("monitors", '{"step": 3, "pgd": "0.5"}'),
        *(("metrics", line.replace("9", "9" * 400)) for line in ('{"step": 9}', '{"step": 3, "loss": 9}')),
        ("metrics", '{"step": 9223372036854775808}'),
        ("evals", '{"step": 3, "accuracy": {"clean": 1e400}}'),
        ("metrics", '{"a": ' + "9" * 10_000 + "}"),
        *(("metrics", line) for line in ("3}", "[" * 100_000 + "}", "\xff}")),
    ],
)
def test_a_line_that_readers_could_not_use_is_refused(name: LogName, line: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.jsonl").write_text(line + "\n", encoding="latin-1")
    expected = "; expected (an? |text)" if ("step" in line or "loss" in line) and "1e400" not in line else ""
    with pytest.raises(RunError, match=rf"{name}\.jsonl is damaged.*{expected}") as caught:
        RunFolder(tmp_path).read_log(name)
    assert len(str(caught.value)) < 600


def test_files_have_the_promised_keys(trained: Path) -> None:
    run = trained / "whole"
    rows = read(run, "metrics.jsonl")
    assert all(set(row) >= METRICS for row in rows)
    assert [row["step"] for row in rows] == [2, 3, 4, 6, 8, 9]  # every second step and every epoch's last
    assert [row["epoch"] for row in rows] == [1, 1, 2, 2, 3, 3]
    evals = read(run, "evals.jsonl")
    assert [row["epoch"] for row in evals] == [1, 2, 3]
    assert all(row["attacks"]["pgd10"]["n"] == 20 for row in evals)
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary) >= SUMMARY
    assert summary["threat"] == {"norm": "linf", "eps": 0.15}
    assert set(summary["attacks"]["pgd10"]) >= ATTACK
    assert summary["attacks"]["pgd10"]["n"] == 40
    assert set(summary["co"]) == {"detected", "verdict", "guard", "watched_steps", "events"}
    assert set(summary["pert_align"]) == {"last", "min"}
    assert all(0 <= value <= 1 for value in summary["accuracy"].values())
    names = sorted(path.name for path in (run / "checkpoints").glob("step-*"))
    assert names == ["step-0-00000008.safetensors", "step-0-00000009.safetensors"]
    summary, description = RunFolder(run).read_summary(), RunFolder(run).read_model()
    assert summary["format"] == description["format"] == FORMAT
    assert summary["versions"]["torch"] == version("torch")
    assert summary["machine"]["threads"] == 1
    assert summary["machine"]["cpu"]
    assert description["data"] == summary["data"]
    assert summary["data"]["name"] == "digits"
    assert summary["data"]["image_size"] == [16, 16]
    assert description["classes"] == [str(digit) for digit in range(10)]
    assert (description["mean"], description["std"]) == ([0.0], [1.0])
    assert len(summary["settings_hash"]) == 16


def test_numbers_that_do_not_exist_are_null(settings: BuildSettings) -> None:
    config = settings("benign", epochs=1)
    summary = train(config, quiet=True).summary
    assert math.isnan(summary["pert_align"]["last"])
    assert all(row["pert_align"] is None for row in read(config.folder(), "metrics.jsonl"))
    assert json.loads((config.folder() / "summary.json").read_text())["pert_align"]["last"] is None


def test_config_yaml_is_enough_to_run_again_and_knows_where_values_come_from(trained, tmp_path) -> None:
    again = Request({"out": str(tmp_path)}, config=str(trained / "whole" / "config.yaml")).resolve()
    train(again, quiet=True)
    for name in ("model.safetensors", "metrics.jsonl", "evals.jsonl"):
        assert (tmp_path / name).read_bytes() == (trained / "whole" / name).read_bytes()
    folder = RunFolder(tmp_path / "new")
    folder.write_config(Request({"epochs": 1}).resolve().stored())
    stored = folder.read_config()
    assert stored["format"] == FORMAT
    assert (stored["optimisation"]["epochs"], stored["threat"]["eps"]) == (1, "0.15")
    assert (stored["origins"]["epochs"], stored["origins"]["eps"]) == ("flag", "recipe digits")
    assert stored["recipe"] == "digits"


@pytest.mark.parametrize("name", ["model.json", "summary.json", "evaluation.json", "config.yaml"])
@pytest.mark.parametrize("text", ["{ this is [ broken", '{"seed": NaN]'])
def test_a_damaged_file_is_one_line_that_names_it(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    reader = "evaluations" if name == "evaluation.json" else name.split(".")[0]
    with pytest.raises(RunError, match=name) as caught:
        getattr(RunFolder(tmp_path), f"read_{reader}")()
    assert "\n" not in str(caught.value)


def test_an_evaluation_record_that_was_changed_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    records = [record_of("pgd10", 0.5125) | {"seed": 0}, record_of("pgd10", 0.25)]
    folder.write_evaluations(records)
    assert folder.read_evaluations() == records
    text = folder.evaluations.read_text()
    folder.evaluations.write_text(text.replace("0.5125", "0.5725"))
    with pytest.raises(RunError, match=r"evaluation\.json is damaged or was edited"):
        folder.read_evaluations()
    folder.evaluations.write_text(json.dumps(records))  # without checksums
    assert folder.read_evaluations() == records
    folder.evaluations.write_text(json.dumps(records).replace("0.5125", "1e999"))
    with pytest.raises(RunError, match="Out of range float"):
        folder.read_evaluations()


@pytest.mark.parametrize("name", ["config.yaml", "model.json", "summary.json"])
def test_one_flipped_bit_is_refused_or_changes_nothing(name: str, whole: Settings) -> None:
    folder, path = RunFolder(whole.folder()), whole.folder() / name
    read: Any = getattr(folder, f"read_{name.split('.')[0]}")
    right, good = read(), path.read_bytes()
    outcomes = {"refused": 0, "used": 0, "unchanged": 0}
    for position in range(0, len(good), len(good) // 60):
        flip(path, position)
        try:  # if it is used, the flip is in the name of the checksum: a key that nobody reads
            found = read()
            outcomes["unchanged"] += found == right  # 0.5 has become .5
            outcomes["used"] += found != right and {**found, **right} == found
        except RunError as error:
            outcomes["refused"] += name in str(error)
        path.write_bytes(good)
    assert sum(outcomes.values()) >= 60
    assert outcomes["used"] <= 1
    assert outcomes["unchanged"] <= 2
    content = yaml.safe_load(good)
    del content["blake2b"]
    path.write_text(json.dumps(content))
    assert read() == right  # as written before there was a checksum, or with an edit that is meant


def test_a_table_shows_the_verified_record_rather_than_the_summary(whole: Settings) -> None:
    """Of a run whose summary has no checksum yet."""
    folder = RunFolder(whole.folder())
    summary = folder.read_summary()
    right = compare(folder.path)["methods"]["sora"]["accuracy"]
    summary["accuracy"] = dict.fromkeys(summary["accuracy"], 0.973)
    (folder.path / "summary.json").write_text(json.dumps(summary))
    assert compare(folder.path)["methods"]["sora"]["accuracy"] == right


@pytest.mark.parametrize("size", [1 << 36, 4000])
@pytest.mark.parametrize("known", [True, False])
def test_weights_of_another_size_are_refused_before_they_are_read(size, known, whole, monkeypatch) -> None:
    folder = RunFolder(whole.folder())
    description = folder.read_model()
    if not known:  # as written before
        del description["weights_bytes"]
    with folder.weights.open("r+b") as file:
        file.truncate(size)  # a sparse file, which takes no space
    monkeypatch.setattr("sora.runs.folder.digest_file", lambda path: pytest.fail("it is read"))
    with pytest.raises(RunError, match=r"model\.safetensors is damaged or was replaced"):
        folder.check_weights(description)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("metrics.jsonl", '{"step":1}\n' * 30, RunError),
        ("metrics.jsonl", '{"step": 1, "loss": 0.123}\n' * 40, UserError),
        ("evaluation.json", f"[{'[],' * 100}[]]", RunError),
        ("evaluation.json", f"[{'1, ' * 400}1]", UserError),
        ("model.json", f'{{"a": [{"{}," * 100}1]}}', RunError),
    ],
)
def test_json_that_would_take_much_memory_is_refused(name, text, error, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SORA_MAX_JSON", "1000")
    (tmp_path / name).write_text(text)
    folder = RunFolder(tmp_path)
    readers: dict[str, Any] = {"evaluation.json": folder.read_evaluations, "model.json": folder.read_model}
    with pytest.raises(error, match=rf"{name}.* exceeds the limit of 1,000 bytes.*set SORA_MAX_JSON"):
        readers.get(name, lambda: folder.read_log("metrics"))()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text(path.read_text().rstrip()),
        lambda path: path.write_text(path.read_text().replace("1", "2", 1)),
        lambda path: path.unlink(),
    ],
)
def test_a_log_of_a_finished_run_that_is_not_as_it_was_is_refused(damage, whole: Settings) -> None:
    folder = RunFolder(whole.folder())
    assert folder.read_log("metrics")
    damage(folder.log_path("metrics"))
    with pytest.raises(RunError, match=r"metrics\.jsonl is damaged or was changed"):
        folder.read_log("metrics")


def test_an_empty_folder_has_nothing_and_a_line_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not folder.exists()
    assert not folder.is_finished()
    assert folder.read_log("metrics") == []
    assert folder.last_line("metrics") is None
    assert folder.read_summary() == {}
    assert folder.read_evaluations() == []
    assert folder.snapshots.files() == {}
    with pytest.raises(UserError, match="no run in"):
        folder.read_config()
    with pytest.raises(UserError, match="no finished run"):
        folder.read_model()
    with pytest.raises(UserError, match="no snapshot of step 3; it has: none"):
        folder.snapshots.file(3)
    log = folder.open_log("metrics")
    log.append({"step": 1, "loss": math.nan})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert folder.read_log("metrics") == [{"step": 1, "loss": None}]
    assert folder.last_line("metrics") == {"step": 1, "loss": None}


def test_load_gives_the_model_back_if_its_weights_are_intact(whole: Settings) -> None:
    folder = whole.folder()
    model = sora.load(folder)
    assert not model.training
    weights = load_file(folder / "model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert model(torch.rand(2, 1, 16, 16)).shape == (2, 10)
    flip(folder / "model.safetensors", -1)
    with pytest.raises(RunError, match=r"model\.safetensors is damaged or was replaced"):
        sora.load(folder)


def test_a_custom_model_is_imported_only_when_specified_again(settings, tmp_path, monkeypatch) -> None:
    source = "import torch\ndef build(num_classes):\n"
    source += "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, num_classes))\n"
    (tmp_path / "ownnet.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = settings(model="ownnet:build", width=None, epochs=1)
    train(config, quiet=True)
    with pytest.raises(UserError, match=r"specify it again: sora\.load\(run, model='ownnet:build'\)"):
        sora.load(config.folder())
    assert sora.load(config.folder(), model="ownnet:build")(torch.rand(1, 1, 16, 16)).shape == (1, 10)


def test_names_inside_a_users_model_stay_as_they_are(settings: BuildSettings) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.submodule = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, 10))
            self.module = torch.nn.Linear(10, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(self.submodule(x))

    config = settings(epochs=1)
    train(config, model=Net(), quiet=True)
    names = set(load_file(RunFolder(config.folder()).weights))
    assert names == {"submodule.1.weight", "submodule.1.bias", "module.weight", "module.bias"}
    assert sora.load(config.folder(), model=Net())(torch.rand(1, 1, 16, 16)).shape == (1, 10)


def test_weights_to_start_from(trained: Path, settings: BuildSettings, tmp_path: Path) -> None:
    wrong, init = tmp_path / "wrong.safetensors", trained / "whole" / "model.safetensors"
    for content in (b"not tensors", b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00\x8c\x01x\x94."):
        wrong.write_bytes(content)
        with pytest.raises(UserError, match="not a safetensors file"):
            train(settings(init=str(wrong)), quiet=True)
    assert not settings().folder().exists()
    first = settings(init=str(init), lr=1e-9, lr_min=0.0, epochs=1)
    train(first, quiet=True)
    ended = load_file(first.folder() / "model.safetensors")
    for name, value in load_file(init).items():
        if "running" not in name and "num_batches" not in name:
            assert torch.allclose(value, ended[name], atol=1e-6), name


def test_a_folder_stands_for_the_runs_in_it_and_each_run_is_found_once(tmp_path, capsys) -> None:
    runs = tmp_path / "runs"
    (tmp_path / "empty").mkdir()
    for name in ("b", "a", "grid/deep/c", "grid/too/deep/d"):
        write_run(runs / name, method="sora" if name == "a" else "fgsm")
    paths = [run.path.relative_to(runs).as_posix() for run in find_runs([runs / "b", runs])]
    assert paths == ["b", "a", "grid/deep/c"]
    for name, message in (("empty", "there is no run in"), ("none", "there is no folder")):
        with pytest.raises(UserError, match=message):
            find_runs([tmp_path / name])
    # A comparison and a report see the same runs.
    assert [run.label for run in read_runs([runs])] == ["a", "b", "c"]
    assert main(["compare", str(runs / "a"), str(runs / "grid" / "deep")]) == 0
    printed = capsys.readouterr().out
    assert "fgsm" in printed
    assert "sora" in printed


def test_labels_name_parents_only_where_they_are_needed(tmp_path: Path) -> None:
    def labels(*names: str) -> list[str]:
        return unique_labels([RunFolder(tmp_path / name) for name in names])

    assert labels("a", "b") == ["a", "b"]
    assert labels("x/a", "y/a", "y/b") == ["x-a", "y-a", "b"]
    assert labels("1/x/a", "2/x/a") == ["1-x-a", "2-x-a"]
    with pytest.raises(UserError, match="the same run is named twice"):
        labels("a", "x/../a")
