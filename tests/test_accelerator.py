"""The tests of an accelerator, on an emulated one, in another process: torch cannot forget a device."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch cannot register a device that is written in Python",
)
@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_an_emulated_accelerator(marked: str) -> None:
    command = [sys.executable, "-m", "pytest", "tests/accelerator", "--device", "emulated", "-m", marked]
    options = ["-p", "no:xdist", "-p", "no:cacheprovider"]
    root = Path(__file__).parents[1]
    done = subprocess.run([*command, *options], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
