"""`python -m tests.torture`: workers run cases of all parts in turn; what they find is printed as a table."""

import argparse
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.torture.bench import COUNTS, MEMORY_LIMIT_MB, MUST_BE_ZERO, Bench, BrokenReference, Outcome
from tests.torture.children import end_with_parent, warm_up

PARTS = {"kills": 50, "flips": 10, "readers": 8, "changes": 6, "threads": 3}
PARTS |= {"commands": 8, "calls": 4, "files": 16}
"""Share of the time that each part gets."""
FORK = multiprocessing.get_context("fork")
PROGRESS = 120.0  # seconds between lines that say how far it is


def main(argv: list[str] | None = None) -> int:
    """Start the workers, collect what they find, print it; 1 if anything happened that must not."""
    flags = _parse(argv)
    began = time.monotonic()
    flags.scratch = Path(tempfile.mkdtemp(prefix="sora-torture-"))
    print(
        f"seed {flags.seed}, {flags.minutes:g} minutes, {flags.jobs} workers, in {flags.scratch}", flush=True
    )
    pipes = [FORK.Pipe(duplex=False) for _ in range(flags.jobs)]
    workers = [FORK.Process(target=work, args=(flags, k, pipes[k][1])) for k in range(flags.jobs)]
    for worker in workers:
        worker.start()
    outcomes, seen, reported = list[Outcome](), set[str](), began
    try:
        for outcome in _arriving(pipes):
            outcomes.append(outcome)
            if time.monotonic() - reported > PROGRESS:
                reported = time.monotonic()
                print(f"{(reported - began) / 60:.0f} min: {progress(outcomes)}", flush=True)
            for failure in outcome.failures:
                if failure not in seen:
                    seen.add(failure)
                    repeat = f"python -m tests.torture --only {outcome.part} --seed {flags.seed}"
                    print(f"\n{failure}\n  repeat: {repeat} --case {outcome.case}", flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted; so far:")
    crashed = [worker for worker in workers if _stop(worker)]
    print(f"\n{table(outcomes)}\n")
    print(f"{time.monotonic() - began:.0f} s of wall time, seed {flags.seed}")
    print(f"must be 0: {', '.join(MUST_BE_ZERO)}; peak memory must stay below {MEMORY_LIMIT_MB} MB")
    if crashed:
        print("FAILED: a worker of the bench itself crashed, see above")
    if crashed or any(outcome.failures for outcome in outcomes):
        print(f"FAILED; what failed is kept in {flags.scratch}")
        return 1
    if not flags.keep:
        shutil.rmtree(flags.scratch, ignore_errors=True)
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long to run (default: 60)")
    help_of_seed = "of all cases; default: a random one, printed"
    parser.add_argument("--seed", type=int, default=random.randrange(2**31), help=help_of_seed)
    parser.add_argument("--jobs", type=int, default=2, help="workers at once (default: 2)")
    parser.add_argument("--only", choices=list(PARTS), help="one part only")
    help_of_case = "one case (17) or some (0-9), however long they take; needs --only"
    parser.add_argument("--case", type=_numbers, help=help_of_case)
    parser.add_argument("--keep", action="store_true", help="keep the scratch folder")
    flags = parser.parse_args(argv)
    if flags.case and flags.only is None:
        parser.error("--case needs --only")
    if flags.jobs < 1:
        parser.error("--jobs must be 1 or more")
    flags.jobs = 1 if flags.case else flags.jobs
    return flags


def _numbers(text: str) -> list[int]:
    """`17` or `0-9` as numbers of cases."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def _arriving(pipes: list[tuple[Connection, Connection]]) -> Iterator[Outcome]:
    """The workers' outcomes as they arrive."""
    for _, writing in pipes:
        writing.close()  # so that the pipe ends with its worker
    open_pipes = [reading for reading, _ in pipes]
    while open_pipes:
        for pipe in wait(open_pipes):
            try:
                yield pipe.recv()
            except EOFError:
                open_pipes.remove(pipe)


def _stop(worker: BaseProcess) -> bool:
    """End a worker, and its children with it; whether it had crashed."""
    worker.join(0.5)  # it closes its pipe just before it ends
    crashed = bool(worker.exitcode)
    worker.kill()
    worker.join()
    return crashed


def work(flags: argparse.Namespace, index: int, pipe: Connection) -> None:
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
    end_with_parent()
    pipe.send(run_case(bench, part, number))


def ready_bench(scratch: Path, seed: int) -> Bench:
    """A bench whose process has everything imported."""
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONHASHSEED="0")
    scratch.mkdir(parents=True, exist_ok=True)
    warm_up(scratch)
    return Bench(scratch, seed)


def run_case(bench: Bench, part: str, number: int) -> Outcome:
    """One case, timed; a reference that fails is a failure of its own."""
    module = importlib.import_module(f"tests.torture.{part}")  # torch comes after `ready_bench`
    began = time.monotonic()
    try:
        outcome = module.case(bench, number)
    except BrokenReference as error:
        outcome = Outcome(part, number)
        outcome.add("different", f"an undisturbed command failed: {error}")
    outcome.seconds = round(time.monotonic() - began, 2)
    return outcome


def progress(outcomes: Sequence[Outcome]) -> str:
    """The sums in one line."""
    inputs = sum(outcome.inputs for outcome in outcomes)
    return f"{inputs} inputs, " + ", ".join(f"{_total(outcomes, what)} {what}" for what in COUNTS)


def table(outcomes: Sequence[Outcome]) -> str:
    """The sums as a Markdown table, one row per part and one for all."""
    head = ["part", "cases", "inputs", *COUNTS, "peak MB", "seconds"]
    parts = sorted({outcome.part for outcome in outcomes})
    rows = [_row(part, [each for each in outcomes if each.part == part]) for part in parts]
    rows.append(_row("all", outcomes))
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = "|" + "|".join(f" {'-' * (width - 1)}: " for width in widths) + "|"
    return "\n".join([_line(head, widths), rule, *(_line(row, widths) for row in rows)])


def _total(outcomes: Sequence[Outcome], what: str) -> int:
    return sum(outcome.counts.get(what, 0) for outcome in outcomes)


def _row(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    counts = [_total(outcomes, what) for what in COUNTS]
    peak = max((outcome.peak_mb for outcome in outcomes), default=0.0)
    numbers = [len(outcomes), sum(outcome.inputs for outcome in outcomes), *counts, round(peak)]
    return [name, *map(str, numbers), f"{sum(outcome.seconds for outcome in outcomes):.0f}"]


def _line(cells: list[str], widths: list[int]) -> str:
    return "| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


if __name__ == "__main__":
    sys.exit(main())
