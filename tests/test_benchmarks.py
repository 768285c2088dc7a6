"""Benchmarks run and report what they measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
