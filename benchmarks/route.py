"""How many source files one training batch visits: a measure of how far a reader has to travel.

    python benchmarks/route.py [--method sora]

Counts, for one batch in the middle of a run, the files of the package whose functions are called, how often
control passes from one file to another, and the call depth: the largest number of the package's frames on the
stack. A batch is what happens between two weight updates.
"""

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

import sora
from sora.settings import Request
from sora.training import train

PACKAGE = Path(sora.__file__).parent


def frames(frame: Any) -> list[str]:
    """Return the files of the package on the stack, the innermost first."""
    names = []
    while frame is not None:
        names.append(frame.f_code.co_filename)
        frame = frame.f_back
    return [str(Path(name).relative_to(PACKAGE)) for name in names if name.startswith(str(PACKAGE))]


def visited(settings: dict[str, Any], batch: int) -> list[list[str]]:
    """Return the stack at every call into the package during one batch, in order."""
    calls: list[list[str]] = []
    updates = itertools.count(1)

    def trace(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            calls.append(frames(frame))

    def count(*_: Any) -> None:
        """Trace from the weight update before the batch to its own."""
        sys.setprofile(trace if next(updates) == batch - 1 else None)

    hook = register_optimizer_step_post_hook(count)
    try:
        train(Request(settings).resolve(), quiet=True)
    finally:
        hook.remove()
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="sora")
    parser.add_argument("--batch", type=int, default=12, help="which batch: the 12th is not logged")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"dataset": "digits", "method": flags.method, "epochs": 2, "threads": 1}
        settings |= {"eval_every": 0, "attacks": ("clean",), "out": str(Path(folder) / "run")}
        stacks = visited(settings, flags.batch)
    calls = [stack[0] for stack in stacks]
    changes = sum(a != b for a, b in itertools.pairwise(calls))
    for name in dict.fromkeys(calls):
        print(f"{calls.count(name):6d}  {name}")
    depth = max(len(stack) for stack in stacks)
    counts = f"{len(set(calls))} files, {changes} changes of file, {len(calls)} calls, call depth {depth}"
    print(f"{counts} ({flags.method})")


if __name__ == "__main__":
    main()
