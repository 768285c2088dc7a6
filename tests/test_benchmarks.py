"""`make bench` runs every benchmark and times every method, each set up as training sets itself up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py"))
ON_RUNS = ("lead_time",)  # reads the runs it is given
RECIPE = (ROOT / "Makefile").read_text().split("\nbench:")[1].split("\n\n")[0]


def test_make_bench_runs_all_and_every_method() -> None:
    listed = RECIPE.split("for name in ")[1].split(";")[0].split()
    assert sorted([*listed, *ON_RUNS]) == FILES
    assert "benchmarks/step.py --all" in RECIPE


@pytest.mark.parametrize("name", [name for name in FILES if name not in ON_RUNS])
def test_times_are_taken_by_the_shared_clockwork(name: str) -> None:
    """So they share threads, allocator and optimiser."""
    text = (ROOT / "benchmarks" / f"{name}.py").read_text()
    assert "from _timing import" in text
    assert "start(" in text


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
