"""Benchmarks run and report what they measured."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sora.runs import RunFolder
from tests.report.toys import write_run

ROOT = Path(__file__).parent.parent


def test_data_compares_batches_with_steps_of_the_same_round(tmp_path: Path) -> None:
    flags = "--width 4 --batch 8 --images 64 --rounds 1 --threads 1 --out"
    command = [sys.executable, str(ROOT / "benchmarks" / "data.py"), *flags.split(), str(tmp_path / "found")]
    subprocess.run(command, check=True, capture_output=True)
    found = json.loads((tmp_path / "found").read_text())
    assert (found["benchmark"], found["clock"], found["width"]) == ("data", "wall", 4)
    assert len(found["batches"]) == 5
    assert all(row["images/s"] == pytest.approx(8e3 / row["ms"]) for row in found["batches"])
    (batch,) = [row for row in found["batches"] if row["augmentation"] == "crop and flip (CIFAR)"]
    assert found["share of a SORA step"]["ratio"] == pytest.approx(batch["ms"] / found["step_ms"])


def test_the_copies_that_pages_are_timed_with_have_readable_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    run = write_run(tmp_path / "run", steps=60)
    importlib.import_module("report").copy_run(run.path, tmp_path / "copy", seed=7, lines=150)
    copy = RunFolder(tmp_path / "copy")
    assert [row["step"] for row in copy.read_log("metrics")] == list(range(1, 151))
    assert len(copy.read_log("evals")) == 3
    assert copy.read_summary()["seed"] == 7
