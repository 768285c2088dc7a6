"""What a SORA step costs against batch size, width, image size and number of processes.

python benchmarks/scaling.py [--width 16] [--rounds 5] [--repeats 3] [--threads 1 --clock cpu]

Processes are compared by wall time, alternately: one process with two threads against two of one thread.
"""

import argparse
import subprocess
import sys
import time
from typing import Any

from _timing import Call, Trainer, arguments, finish, interleave, quartiles, ratio, start, table

from sora._devices import pick_device, rank, world
from sora.training import distributed


def sweep(what: str, values: list[int], base: dict[str, int], args: Any) -> list[dict[str, Any]]:
    """Milliseconds per step and microseconds per image while one size changes."""
    steps: dict[str, Call] = {}
    for value in values:
        trainer = Trainer.build(**(base | {what: value}))
        steps[str(value)] = trainer.step_of(trainer.method("sora"))
    times = interleave(steps, args.rounds, args.clock)
    rows = []
    for value in values:
        seconds = quartiles(times[str(value)])[1]
        images = (base | {what: value})["batch"]
        row = {what: value, "ms": 1e3 * seconds, "us per image": 1e6 * seconds / images}
        rows.append(row | {"relative": ratio(times, str(value), str(values[0]))["ratio"]})
    table(f"SORA step against {what} (otherwise {base})", rows)
    return rows


def worker(args: argparse.Namespace) -> None:
    """One rank: steps on its share of the batch; rank 0 prints images per second."""
    device = pick_device("cpu")
    with distributed.process_group(device):
        per_process = 128 // world()
        trainer = Trainer.build(args.width, per_process)
        trainer.model = distributed.wrap(trainer.model)
        step = trainer.step_of(trainer.method("sora"))
        for _ in range(2):
            step()
        began = time.perf_counter()
        for _ in range(args.rounds):
            step()
        if rank() == 0:
            print(128 * args.rounds / (time.perf_counter() - began))


def throughput(ranks: int, threads: int, args: argparse.Namespace) -> float:
    flags = [f"--width={args.width}", f"--rounds={args.rounds}", f"--threads={threads}", "--worker"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run([*torchrun, __file__, *flags], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = arguments(__doc__, width=16, rounds=5, repeats=3)
    parser.add_argument("--worker", action="store_true", help="be one process of a group")
    args = start(parser)
    if args.worker:
        worker(args)
        return
    base = {"width": args.width, "batch": 64, "size": 32}
    result: dict[str, Any] = {
        "batch": sweep("batch", [16, 32, 64, 128, 256], base, args),
        "width": sweep("width", [8, 16, 32, 64], base | {"batch": 32}, args),
        "size": sweep("size", [16, 32, 64], base | {"batch": 32}, args),
    }
    setups = {"1 process, 2 threads": (1, 2), "2 processes, 1 thread each": (2, 1)}
    speeds: dict[str, list[float]] = {name: [] for name in setups}
    for _ in range(args.repeats):
        for name, (ranks, threads) in setups.items():
            speeds[name].append(throughput(ranks, threads, args))
    reference = next(iter(setups))
    result["ranks"] = [
        {"setup": name, "images per second": quartiles(found)[1], **ratio(speeds, name, reference)}
        for name, found in speeds.items()
    ]
    table("the same 128 images per step", result["ranks"])
    finish(args, "scaling", result)


if __name__ == "__main__":
    main()
