"""The bench itself, and a fixed part of it that takes about ten minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.report import Outcome, Report

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")


def bench(*flags: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: the bench forks, and pytest may have threads."""
    command = [sys.executable, "-m", "tests.torture", "--jobs", "1", "--seed", "7", *flags]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "cases"),
    [("kills", "0-17"), ("flips", "0-29"), ("commands", "0-5"), ("calls", "0-14"), ("files", "0-13")],
)
def test_nothing_differs_nothing_is_raw_nothing_runs(part: str, cases: str) -> None:
    found = bench("--only", part, "--case", cases)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_a_forked_run_has_the_bits_of_a_new_interpreter(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from tests.torture.workers import ready_bench
from tests.torture import comparing, configurations
from tests.torture.bench import fill
scratch = Path(sys.argv[1])
bench = ready_bench(scratch, 0)
for cold in (False, True):
    ended = bench.run(fill(configurations.finished_run(), scratch / str(cold)), scratch, cold=cold)
    assert ended.code == 0, ended.err
found = comparing.run_differences(scratch / "False", scratch / "True")
assert found == [], found
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    found = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("change", range(4))
def test_a_signal_arrives_before_the_chosen_change(tmp_path: Path, change: int) -> None:
    script = """
import os, sys
from tests.torture.events import signal_before
def change_files():
    open("a", "w").close(); os.link("a", "b"); os.rename("b", "c"); os.remove("a")
    return 0
os.chdir(sys.argv[1])
sys.exit(signal_before(9, int(sys.argv[2]), change_files)())
"""
    command = [sys.executable, "-c", script, str(tmp_path), str(change)]
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    assert subprocess.run(command, env=env).returncode == -9
    assert sorted(os.listdir(tmp_path)) == [[], ["a"], ["a", "b"], ["a", "c"]][change]


def test_the_report_fails_on_what_must_not_happen_and_on_memory() -> None:
    report = Report()
    good = Outcome("kills", 0, inputs=2)
    for count in ("killed", "killed", "identical", "refused"):
        good.add(count)
    good.saw_memory(900, "a run")
    report.add(Outcome.from_line(good.to_line()))
    assert not report.failed
    assert report.total("killed") == 2
    assert "900" in report.table()
    for what in ("different", "memory"):
        bad = Outcome("files", 1)
        bad.saw_memory(2000, "a bomb") if what == "memory" else bad.add(what, "model.safetensors")
        again = Report()
        again.add(bad)
        assert again.failed


def test_what_a_case_keeps_in_memory_does_not_stay_with_the_worker() -> None:
    script = """
import os
from tests.torture import workers
from tests.torture.report import Outcome
def keeping(bench, part, number):
    bench[number] = "large"
    return Outcome(part, number)
workers.run_case = keeping
reading, writing = os.pipe()
bench = {}
for number in range(3):
    workers.fork_case(bench, "files", number, writing)
print(os.read(reading, 1 << 16).count(b"files"), len(bench))
"""
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, text=True, capture_output=True)
    assert found.stdout.split() == ["3", "0"]


def test_a_case_alone_needs_its_part() -> None:
    found = bench("--case", "3")
    assert found.returncode == 2
    assert "--case needs --only" in found.stderr
