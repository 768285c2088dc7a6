"""Workers: each runs cases of all parts in turn, and sends the outcome of each."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from argparse import Namespace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from tests.torture.report import Outcome

if TYPE_CHECKING:  # it imports torch, which comes after `ready_bench` has set the threads
    from tests.torture.bench import Bench

PARTS = {"kills": 60, "flips": 10, "commands": 9, "calls": 5, "files": 16}
"""Share of the time that each part gets."""
FORK = multiprocessing.get_context("fork")


def work(flags: Namespace, index: int, pipe: Connection) -> None:
    """Run the cases index, index + jobs, ... of the chosen parts and send their outcomes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which ends this one
    deadline = time.monotonic() + 60 * flags.minutes
    bench = ready_bench(flags.scratch / f"worker{index}", flags.seed)
    parts = [flags.only] if flags.only else list(PARTS)
    numbers = {part: iter(flags.case or count(index, flags.jobs)) for part in parts}
    spent = dict.fromkeys(parts, 0.0)
    while flags.case or time.monotonic() < deadline:
        part = min(spent, key=lambda name: spent[name] / PARTS[name])
        number = next(numbers[part], None)
        if number is None:
            return
        began = time.monotonic()
        fork_case(bench, part, number, pipe)
        spent[part] += time.monotonic() - began


def fork_case(bench: Bench, part: str, number: int, pipe: Connection) -> None:
    """Run a case in a fork of this process, which sends its outcome.

    A case may need a lot of memory to make hostile files. Without the fork this process would keep it, and
    the children of every later case would count it as theirs.
    """
    child = FORK.Process(target=_send_case, args=(bench, part, number, pipe))
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"case {number} of {part} crashed")


def _send_case(bench: Bench, part: str, number: int, pipe: Connection) -> None:
    from tests.torture.children import end_with_parent

    end_with_parent()
    pipe.send(run_case(bench, part, number))


def ready_bench(scratch: Path, seed: int) -> Bench:
    """A bench whose process has everything imported."""
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONHASHSEED="0")
    from tests.torture.bench import Bench
    from tests.torture.children import warm_up

    scratch.mkdir(parents=True, exist_ok=True)
    warm_up(scratch)
    return Bench(scratch, seed)


def run_case(bench: Bench, part: str, number: int) -> Outcome:
    """One case, timed; a reference that fails is a failure of its own."""
    from tests.torture import calls, commands, files, flips, kills
    from tests.torture.bench import BrokenReference

    modules = {"kills": kills, "flips": flips, "commands": commands, "calls": calls, "files": files}
    began = time.monotonic()
    try:
        outcome = modules[part].case(bench, number)
    except BrokenReference as error:
        outcome = Outcome(part, number)
        outcome.add("different", f"an undisturbed command failed: {error}")
    outcome.seconds = round(time.monotonic() - began, 2)
    return outcome
