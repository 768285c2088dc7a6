"""`python -m tests.torture`: run the bench for some time and print the table."""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.torture.report import MEMORY_LIMIT_MB, MUST_BE_ZERO, Outcome, Report
from tests.torture.workers import PARTS, start_worker


def main(argv: list[str] | None = None) -> int:
    """Start the workers, collect what they find, print it; 1 if anything happened that must not."""
    flags = _parse(argv)
    began = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix="sora-torture-"))
    parts = [flags.only] if flags.only else list(PARTS)
    print(
        f"seed {flags.seed}, {flags.minutes:g} minutes, {flags.jobs} workers, scratch {scratch}", flush=True
    )
    deadline = began + 60 * flags.minutes
    cases = None if flags.case is None else _numbers(flags.case)
    jobs = 1 if cases else flags.jobs
    workers = [start_worker(k, jobs, parts, flags.seed, deadline, scratch, cases) for k in range(jobs)]
    report, seen, reported = Report(), set[str](), began
    try:
        for outcome in _outcomes(workers):
            report.add(outcome)
            if time.monotonic() - reported > PROGRESS:
                reported = time.monotonic()
                print(f"{(reported - began) / 60:.0f} min: {report.progress()}", flush=True)
            for failure in outcome.failures:
                if failure in seen:
                    continue
                seen.add(failure)
                repeat = f"python -m tests.torture --only {outcome.part} --seed {flags.seed}"
                print(f"\n{failure}\n  repeat: {repeat} --case {outcome.case}", flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted; so far:")
    crashed = any(_stop(pid) for pid, _ in workers)
    print(f"\n{report.table()}\n")
    print(f"{time.monotonic() - began:.0f} s of wall time, seed {flags.seed}")
    print(f"must be 0: {', '.join(MUST_BE_ZERO)}; peak memory must stay below {MEMORY_LIMIT_MB} MB")
    if crashed:
        print("FAILED: a worker of the bench itself crashed, see above")
    if report.failed or crashed:
        print(f"FAILED; what failed is kept in {scratch}")
        return 1
    if not flags.keep:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


PROGRESS = 120.0  # seconds between lines that say how far it is


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long to run (default: 60)")
    parser.add_argument("--seed", type=int, default=None, help="of all cases; default: a random one, printed")
    parser.add_argument("--jobs", type=int, default=2, help="workers at once (default: 2)")
    parser.add_argument("--only", choices=list(PARTS), help="one part only")
    parser.add_argument("--case", help="one case (17) or some (0-9), however long they take; needs --only")
    parser.add_argument("--keep", action="store_true", help="keep the scratch folder")
    flags = parser.parse_args(argv)
    if flags.case is not None and flags.only is None:
        parser.error("--case needs --only")
    if flags.jobs < 1:
        parser.error("--jobs must be 1 or more")
    if flags.seed is None:
        flags.seed = random.randrange(2**31)
    return flags


def _numbers(text: str) -> list[int]:
    """`17` or `0-9` as numbers of cases."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def _outcomes(workers: list[tuple[int, int]]) -> Iterator[Outcome]:
    """The workers' outcomes as they arrive."""
    buffers = {descriptor: b"" for _, descriptor in workers}
    while buffers:
        for descriptor in select.select(list(buffers), [], [])[0]:
            block = os.read(descriptor, 1 << 16)
            if not block:
                del buffers[descriptor]
                continue
            *lines, buffers[descriptor] = (buffers[descriptor] + block).split(b"\n")
            yield from (Outcome.from_line(line) for line in lines)


def _stop(pid: int) -> bool:
    """End a worker, and its children with it; whether it had crashed."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        time.sleep(0.2)  # it closes its pipe just before it ends
        ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return bool(ended and status)


if __name__ == "__main__":
    sys.exit(main())
