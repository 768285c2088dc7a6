"""Benchmarks run and report what they measured."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import save_file

from sora.runs import RunFolder
from tests.probes.toys import write_run

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def test_data_compares_batches_with_steps_of_the_same_round(tmp_path, monkeypatch) -> None:
    flags = "--width 4 --batch 8 --images 64 --rounds 1 --threads 1 --out"
    monkeypatch.setattr(sys, "argv", ["data.py", *flags.split(), str(tmp_path / "found")])
    importlib.import_module("data").main()
    found = json.loads((tmp_path / "found").read_text())
    assert (found["benchmark"], found["clock"], found["width"]) == ("data", "wall", 4)
    assert len(found["batches"]) == 5
    assert all(row["images/s"] == pytest.approx(8e3 / row["ms"]) for row in found["batches"])
    (batch,) = [row for row in found["batches"] if row["augmentation"] == "crop and flip (CIFAR)"]
    assert found["share of a SORA step"]["ratio"] == pytest.approx(batch["ms"] / found["step_ms"])


def test_the_copies_that_pages_are_timed_with_have_readable_logs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=60)
    importlib.import_module("report").copy_run(run.path, tmp_path / "copy", seed=7, lines=150)
    copy = RunFolder(tmp_path / "copy")
    assert [row["step"] for row in copy.read_log("metrics")] == list(range(1, 151))
    assert len(copy.read_log("evals")) == 3
    assert copy.read_summary()["seed"] == 7


def write_results(folder: Path, **changes: Any) -> Path:
    """A result of `golden.py`: weights, a log, a summary and what was printed."""
    (folder / "run").mkdir(parents=True)
    values = {"loss": 0.5, "weight": 1.0, "exit": 0, "eps": "0.15", "seconds": 1.0} | changes
    save_file({"w": numpy.array([values["weight"]])}, folder / "run" / "model.safetensors")
    (folder / "run" / "metrics.jsonl").write_text(f'{{"step": 1}}\n{{"step": 2, "loss": {values["loss"]}}}\n')
    summary = {"train_seconds": values["seconds"], "threat": {"eps": values["eps"]}, "out": str(folder)}
    (folder / "run" / "summary.json").write_text(json.dumps(summary, indent=2))
    (folder / "printed.txt").write_text(f"exit {values['exit']}\nin {folder}\n")
    return folder


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"seconds": 7.0}, ""),
        ({"loss": 0.25}, "run/metrics.jsonl, - '[1].loss = 0.5' + '[1].loss = 0.25' (1 gone, 1 new)"),
        ({"eps": "0.3"}, "run/summary.json, - 'threat.eps = \"0.15\"' + 'threat.eps = \"0.3\"'"),
        ({"exit": 2}, "printed.txt, - 'exit 0' + 'exit 2'"),
        ({"weight": 1.0 + 1e-15}, "run/model.safetensors, - 'w float64 (1,) "),
        ({"weight": 2.0, "loss": 0.25}, "; also run/model.safetensors"),
    ],
)
def test_golden_finds_every_difference_but_those_of_time_and_place(tmp_path, changes, found) -> None:
    old, new = write_results(tmp_path / "old"), write_results(tmp_path / "new", **changes)
    places = {str(old): "HERE", str(new): "HERE"}
    text = importlib.import_module("golden").difference(old, new, places)
    assert found in text
    assert bool(text) == bool(found)


def test_golden_finds_files_and_lines_that_only_one_version_wrote(tmp_path: Path) -> None:
    golden = importlib.import_module("golden")
    old, new = write_results(tmp_path / "old"), write_results(tmp_path / "new")
    (new / "run" / "events.jsonl").write_text("")
    assert golden.difference(old, new, {}) == "files: only in one version: run/events.jsonl"
    assert golden.first_difference(["a", "c"], ["a", "b", "c"]) == "+ 'b' (0 gone, 1 new)"
    assert golden.first_difference(["a", "b"], ["b", "a"]) == "the same lines in another order or number"


def test_peers_measures_what_is_installed_and_says_what_is_not(tmp_path, monkeypatch) -> None:
    for name in ("torchattacks", "foolbox", "art.attacks.evasion"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    flags = "--width 4 --batch 4 --images 8 --rounds 1 --threads 1 --out"
    monkeypatch.setattr(sys, "argv", ["peers.py", *flags.split(), str(tmp_path / "found")])
    importlib.import_module("peers").main()
    found = json.loads((tmp_path / "found").read_text())
    assert [row["ms"] == "-" for row in found["step"]] == [False] * 3 + [True] * 3
    assert [row["ms"] == "-" for row in found["evaluation"]] == [False] * 2 + [True] * 3
    assert all("ModuleNotFoundError" in row["SORA over it"] for row in found["step"][3:])
