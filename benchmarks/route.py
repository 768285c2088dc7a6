"""How many source files one training batch visits: a measure of how far a reader has to travel.

    python benchmarks/route.py [--method sora]

Counts, for one batch in the middle of a run, the files of the package whose functions are called, and how
often control passes from one file to another.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any


def visited(package: Path, settings: dict[str, Any], batch: int) -> list[str]:
    """The file of every call into the package during one batch, in order."""
    from sora.data import Loader

    calls: list[str] = []
    counter = {"batches": 0}
    original = Loader._batch

    def count(self: Any, *arguments: Any) -> Any:
        """The loader makes batch number `batch`: tracing begins here and ends when it makes the next."""
        counter["batches"] += 1
        if counter["batches"] == batch:
            sys.setprofile(trace)
        elif counter["batches"] == batch + 1:
            sys.setprofile(None)
        return original(self, *arguments)

    def trace(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and str(package) in frame.f_code.co_filename:
            calls.append(str(Path(frame.f_code.co_filename).relative_to(package)))

    Loader._batch = count  # type: ignore[method-assign]
    try:
        run(settings)
    finally:
        sys.setprofile(None)
        Loader._batch = original  # type: ignore[method-assign]
    return calls


def run(settings: dict[str, Any]) -> None:
    from sora.settings import Request
    from sora.training import train

    train(Request(settings).resolve(), quiet=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="sora")
    parser.add_argument("--batch", type=int, default=12, help="which batch: the 12th is not logged")
    flags = parser.parse_args()
    import sora

    package = Path(sora.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        settings = {"dataset": "digits", "method": flags.method, "epochs": 2, "threads": 1}
        settings |= {"eval_every": 0, "attacks": ("clean",), "out": str(Path(folder) / "run")}
        calls = visited(package, settings, flags.batch)
    changes = sum(a != b for a, b in itertools.pairwise(calls))
    for name in dict.fromkeys(calls):
        print(f"{calls.count(name):6d}  {name}")
    print(f"{len(set(calls))} files, {changes} changes of file, {len(calls)} calls ({flags.method})")


if __name__ == "__main__":
    main()
