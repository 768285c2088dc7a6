"""Workers: each runs cases of all parts in turn, and writes one line per case to a pipe."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from tests.torture.report import Outcome

PARTS = {"kills": 60, "flips": 10, "commands": 9, "calls": 5, "files": 16}
"""Share of the time that each part gets."""


def start_worker(
    index: int,
    jobs: int,
    parts: Sequence[str],
    seed: int,
    deadline: float,
    scratch: Path,
    cases: Sequence[int] | None = None,
) -> tuple[int, int]:
    """Fork a worker; its process id, and the pipe that its outcomes come through.

    Args:
        index: Which of the workers this is: it takes the cases index, index + jobs, ...
        jobs: How many workers there are.
        parts: The parts to run.
        seed: Of all cases.
        deadline: When to start no further case, by the monotonic clock.
        scratch: The folder of all workers.
        cases: Only these.
    """
    reading, writing = os.pipe()

    def work() -> None:
        os.close(reading)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which ends this one
        _work(writing, index, jobs, parts, seed, deadline, scratch / f"worker{index}", cases)

    pid = _fork(work)
    os.close(writing)
    return pid, reading


def _fork(function: Callable[[], None]) -> int:
    """Run a function in a fork that ends with it, with exit code 1 if it raised; the fork's process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        function()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _work(
    pipe: int,
    index: int,
    jobs: int,
    parts: Sequence[str],
    seed: int,
    deadline: float,
    scratch: Path,
    cases: Sequence[int] | None,
) -> None:
    scratch.mkdir(parents=True)
    bench = ready_bench(scratch, seed)
    spent = dict.fromkeys(parts, 0.0)
    numbers = {part: iter(cases) if cases is not None else count(index, jobs) for part in parts}
    while time.monotonic() < deadline or cases is not None:
        part = min(spent, key=lambda name: spent[name] / PARTS[name])
        number = next(numbers[part], None)
        if number is None:
            return
        began = time.monotonic()
        fork_case(bench, part, number, pipe)
        spent[part] += time.monotonic() - began


def fork_case(bench, part: str, number: int, pipe: int) -> None:  # type: ignore[no-untyped-def]
    """Run a case in a fork of this process, which writes its outcome to the pipe.

    A case may need a lot of memory to make hostile files. Without the fork this process would keep it, and
    the children of every later case would count it as theirs.
    """
    from tests.torture.children import end_with_parent

    def run() -> None:
        end_with_parent()
        os.write(pipe, run_case(bench, part, number).to_line())

    _, status = os.waitpid(_fork(run), 0)
    if status:
        raise RuntimeError(f"case {number} of {part} crashed")


def ready_bench(scratch: Path, seed: int):  # type: ignore[no-untyped-def]
    """A bench whose process has everything imported."""
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONHASHSEED="0")
    from tests.torture.bench import Bench
    from tests.torture.children import warm_up

    scratch.mkdir(parents=True, exist_ok=True)
    warm_up(scratch)
    return Bench(scratch, seed)


def run_case(bench, part: str, number: int) -> Outcome:  # type: ignore[no-untyped-def]
    """One case, timed; a reference that fails is a failure of its own."""
    from tests.torture.bench import BrokenReference

    began = time.monotonic()
    try:
        outcome = case_of(part)(bench, number)
    except BrokenReference as error:
        outcome = Outcome(part, number)
        outcome.add("different", f"an undisturbed command failed: {error}")
    outcome.seconds = round(time.monotonic() - began, 2)
    return outcome


def case_of(part: str) -> Callable[..., Outcome]:
    """The function that runs a case of a part."""
    from tests.torture import calls, commands, files, flips, kills

    modules = {"kills": kills, "flips": flips, "commands": commands, "calls": calls, "files": files}
    return modules[part].case
