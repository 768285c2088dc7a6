"""Peak memory of a step: live tensor bytes from the profiler, and the resident set of a fresh process.

python benchmarks/memory.py [--width 16] [--batch 128] [--all]
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _timing import Call, Trainer, arguments, finish, start, table
from torch.profiler import ProfilerActivity, profile

from sora import methods

OFF = ", observation off"
FEW = ("fgsm-rs", f"fgsm-rs{OFF}", "sora", f"sora{OFF}", "n-fgsm", "pgd-10", "trades")


def peak_bytes(step: Call) -> int:
    """The most bytes of tensors alive at once during a step, above those alive before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e["ts"]):
        live += event["args"]["Bytes"]
        peak = max(peak, live)
    return peak


def built(name: str, args: Any) -> Call:
    trainer = Trainer.build(args.width, args.batch)
    step = trainer.step_of(trainer.method(name.removesuffix(OFF), observing=not name.endswith(OFF)))
    step()  # the optimiser's momentum appears here
    return step


def resident_mb(name: str, args: Any) -> float:
    """`ru_maxrss` of a fresh process that takes three steps."""
    flags = [f"--{key}={getattr(args, key)}" for key in ("width", "batch", "threads")]
    command = [sys.executable, __file__, *flags, f"--only={name}"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = arguments(__doc__, width=16, batch=128)
    parser.add_argument("--all", action="store_true", help="every method, not only the main ones")
    parser.add_argument("--only", metavar="NAME", help="take steps and print this process' peak in MB")
    args = start(parser)
    if args.only:
        step = built(args.only, args)
        step()
        step()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    # First, while this process is small: a child starts with its parent's `ru_maxrss`.
    names = dict.fromkeys([*FEW, *(methods.names() if args.all else ())])
    resident = {name: resident_mb(name, args) for name in names}
    peaks = {name: peak_bytes(built(name, args)) for name in names}
    rows = [
        {
            "name": name,
            "peak tensor MB": peak / 2**20,
            "over fgsm-rs": peak / peaks["fgsm-rs"],
            "over fgsm-rs, observation off": peak / peaks["fgsm-rs, observation off"],
            "process MB": resident[name],
        }
        for name, peak in peaks.items()
    ]
    table(f"peak memory of a step (width {args.width}, batch {args.batch})", rows)
    finish(args, "memory", {"width": args.width, "batch": args.batch, "rows": rows})


if __name__ == "__main__":
    main()
