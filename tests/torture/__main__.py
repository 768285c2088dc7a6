"""`python -m tests.torture`: run the bench for some time and print the table."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.torture.report import MEMORY_LIMIT_MB, MUST_BE_ZERO, Outcome, progress, table
from tests.torture.workers import FORK, PARTS, work

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


if __name__ == "__main__":
    sys.exit(main())
