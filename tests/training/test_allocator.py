"""Freed memory stays with the process, and the next step gets it without page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, torch
from sora.training.process import keep_freed_memory
if {keep}: assert keep_freed_memory()
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20): torch.zeros(1 << 24)  # until the heap has found room for one
before = faults()
for _ in range(3): torch.zeros(1 << 24)
print(faults() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_large_blocks_are_reused_without_page_faults() -> None:
    def faults(keep: bool) -> int:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(keep=keep)], capture_output=True, text=True
        )
        return int(done.stdout)

    assert faults(keep=True) * 20 < faults(keep=False)
