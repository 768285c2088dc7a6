"""The bench itself, and a fixed part of it that takes about ten minutes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.__main__ import progress, table
from tests.torture.bench import Outcome

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")


def bench(*flags: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: the bench forks, and pytest may have threads."""
    command = [sys.executable, "-m", "tests.torture", "--jobs", "1", "--seed", "7", *flags]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True)


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run(command, env=env, text=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "cases"),
    [
        *(("kills", "0-17"), ("flips", "0-29"), ("commands", "0-5"), ("calls", "0-14"), ("files", "0-15")),
        *(("readers", "0-21"), ("changes", "0-9"), ("threads", "0-3")),
    ],
)
def test_nothing_differs_nothing_is_raw_nothing_runs(part: str, cases: str) -> None:
    found = bench("--only", part, "--case", cases)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_a_forked_run_has_the_bits_of_a_new_interpreter(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from tests.torture.__main__ import ready_bench
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
    found = run_script(script, str(tmp_path))
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("change", range(4))
def test_a_signal_arrives_before_the_chosen_change(tmp_path: Path, change: int) -> None:
    script = """
import os, sys
from tests.torture.children import signal_before
def change_files():
    open("a", "w").close(); os.link("a", "b"); os.rename("b", "c"); os.remove("a")
    return 0
os.chdir(sys.argv[1])
sys.exit(signal_before(9, int(sys.argv[2]), change_files)())
"""
    assert run_script(script, str(tmp_path), str(change)).returncode == -9
    assert sorted(os.listdir(tmp_path)) == [[], ["a"], ["a", "b"], ["a", "c"]][change]


def test_an_outcome_fails_on_what_must_not_happen_and_on_memory() -> None:
    good, changed, large = (Outcome("kills", number, inputs=2) for number in range(3))
    for count in ("killed", "killed", "identical", "refused"):
        good.add(count)
    good.saw_memory(900, "a run")
    changed.compare("a resumed run", ["model.safetensors"])
    large.saw_memory(2000, "a bomb")
    assert good.failures == []
    assert changed.failures == ["different: a resumed run: model.safetensors"]
    assert large.failures == ["memory: 2000 MB by a bomb"]
    assert "2 killed" in progress([good])
    assert "900" in table([good])


def test_what_a_case_keeps_in_memory_does_not_stay_with_the_worker() -> None:
    script = """
from tests.torture import __main__ as workers
from tests.torture.bench import Outcome
def keeping(bench, part, number):
    bench[number] = "large"
    return Outcome(part, number)
workers.run_case = keeping
reading, writing = workers.FORK.Pipe(duplex=False)
bench = {}
for number in range(3):
    workers.fork_case(bench, "files", number, writing)
print([reading.recv().part for _ in range(3)], len(bench))
"""
    assert run_script(script).stdout == "['files', 'files', 'files'] 0\n"


def test_a_case_alone_needs_its_part() -> None:
    found = bench("--case", "3")
    assert found.returncode == 2
    assert "--case needs --only" in found.stderr
