"""Peak memory of a step: live tensor bytes from the profiler, and the resident set of a fresh process.

python benchmarks/memory.py [--width 16] [--batch 128]
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _timing import Call, Trainer, arguments, finish, start, table
from torch.profiler import ProfilerActivity, profile

CONTESTANTS = {
    "fgsm-rs": ("fgsm-rs", True),
    "fgsm-rs, observation off": ("fgsm-rs", False),
    "sora": ("sora", True),
    "sora, observation off": ("sora", False),
    "n-fgsm": ("n-fgsm", True),
    "pgd-10": ("pgd-10", True),
    "trades": ("trades", True),
}


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
    method, observing = CONTESTANTS[name]
    trainer = Trainer.build(args.width, args.batch)
    step = trainer.step_of(trainer.method(method, observing=observing))
    step()  # the optimiser's momentum appears here
    return step


def resident_mb(name: str, args: Any) -> float:
    """`ru_maxrss` of a fresh process that takes three steps."""
    flags = [f"--{key}={getattr(args, key)}" for key in ("width", "batch", "threads")]
    command = [sys.executable, __file__, *flags, f"--only={name}"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = arguments(__doc__, width=16, batch=128)
    parser.add_argument("--only", choices=CONTESTANTS, help="take steps and print this process' peak in MB")
    args = start(parser)
    if args.only:
        step = built(args.only, args)
        step()
        step()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    # First, while this process is small: a child starts with its parent's `ru_maxrss`.
    resident = {name: resident_mb(name, args) for name in CONTESTANTS}
    peaks = {name: peak_bytes(built(name, args)) for name in CONTESTANTS}
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
