"""Does a grid keep its cores busy? Its wall time over its runs' own time divided by the runs at once.

    python benchmarks/grid.py [--runs 8] [--jobs 2] [--epochs 10]

A run's own time is that of its process, start-up included. The time before its first step is printed too.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from sora.experiments.engines import Ended, Local, Process, Work
from sora.experiments.grid import run_grid
from sora.runs import RunFolder
from sora.settings import Request


class TimedProcess(Process):
    """A process that knows how long it took."""

    seconds: float | None = None

    def __init__(self, work: Work) -> None:
        self._began = time.perf_counter()
        super().__init__(work)

    def ended(self) -> Ended | None:
        """How it ended; the grid asks several times per second."""
        ended = super().ended()
        if ended is not None and self.seconds is None:
            self.seconds = time.perf_counter() - self._began
        return ended


class Timed(Local):
    """Processes of this machine, timed."""

    def __init__(self) -> None:
        self.processes: list[TimedProcess] = []

    def start(self, work: Work) -> TimedProcess:
        """Start a process and remember it."""
        self.processes.append(TimedProcess(work))
        return self.processes[-1]


def main() -> None:
    """Run the grid and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            Request(
                {
                    "dataset": "digits",
                    "method": "sora",
                    "seed": seed,
                    "epochs": flags.epochs,
                    "out": f"{folder}/sora-s{seed}",
                    "threads": 1,
                    "attacks": "clean,fgsm",
                }
            ).resolve()
            for seed in range(flags.runs)
        ]
        engine = Timed()
        began = time.perf_counter()
        grid = run_grid(runs, flags.jobs, quiet=True, engine=engine)
        wall = time.perf_counter() - began
        failed = [job.error for job in grid if job.error]
        if failed:
            raise SystemExit(failed[0])
        own = [process.seconds or 0.0 for process in engine.processes]
        training = [RunFolder(Path(run.settings.folder())).read_summary()["train_seconds"] for run in runs]
    around = [process - train for process, train in zip(own, training, strict=True)]
    print(f"{flags.runs} runs, {flags.jobs} at once: wall time {wall:.1f} s")
    print(f"runs' own time / jobs: {sum(own) / flags.jobs:.1f} s, ratio {wall * flags.jobs / sum(own):.3f}")
    print(f"a run outside of training (start, data, evaluation, files): {statistics.median(around):.1f} s")


if __name__ == "__main__":
    main()
