"""The process of a run: seconds and memory count training only, and freed memory stays with it."""

import math
import subprocess
import sys
import time

import pytest
import torch

from sora.runs import RunFolder
from sora.training.process import TrainingMeter, process_peak_mb
from sora.training.state import State
from tests.training.helpers import BuildSettings

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which passes only when a test changes it."""
    now = [50.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def meter_of(**before: float) -> TrainingMeter:
    """Return a meter that adds to what a run had before."""
    return TrainingMeter(State(*[None] * 4, **before), CPU)  # type: ignore[arg-type]


def test_pauses_do_not_count_and_a_resumed_run_adds_to_what_it_had(clock: list[float]) -> None:
    meter = meter_of(seconds=100.0, peak_mb=7.0)
    meter.start()
    clock[0] += 2
    with meter.paused():
        clock[0] += 5
        assert meter.seconds == 102
    clock[0] += 1
    meter.stop()
    clock[0] += 5
    assert meter.seconds == meter.state.seconds == 103
    assert meter.state.peak_mb >= 7.0


@pytest.mark.skipif(math.isnan(process_peak_mb()), reason="the system does not tell")
def test_a_resumed_run_keeps_the_larger_peak_of_an_earlier_part() -> None:
    for earlier in (10 * process_peak_mb(), 1.0):
        meter = meter_of(peak_mb=earlier)
        meter.start()
        meter._peak_before = 0.0  # as if the peak of the process had grown since
        meter.stop()
        assert meter.state.peak_mb == max(earlier, process_peak_mb())


def test_an_unknown_peak_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sora.training.process.resource", None)
    meter = meter_of()
    meter.start()
    meter.stop()
    assert math.isnan(meter.state.peak_mb)


def test_memory_of_a_pause_is_not_trainings() -> None:
    meter = meter_of()
    meter.start()
    meter.stop()
    training = meter.state.peak_mb
    assert training == process_peak_mb() or math.isnan(training)
    meter.start()
    with meter.paused():
        large = torch.ones(1 << 26)  # 256 MB that training never used
        del large
    meter.stop()
    assert meter.state.peak_mb == training or math.isnan(training)


def test_the_summary_has_both(trained: BuildSettings) -> None:
    summary = RunFolder(trained().folder()).read_summary()
    assert summary["train_seconds"] > 0
    assert summary["images_per_second"] > 0
    assert summary["peak_memory_mb"] is None or summary["peak_memory_mb"] > 0


FAULTS = """
import resource, torch
from sora.training.process import keep_freed_memory
def faults():
    for _ in range(20): torch.zeros(1 << 24)  # until the heap has found room for one
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3): torch.zeros(1 << 24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults(), keep_freed_memory(), faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_large_blocks_are_reused_without_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    before, kept, after = done.stdout.split()
    assert kept == "True"
    assert int(after) * 20 < int(before)
