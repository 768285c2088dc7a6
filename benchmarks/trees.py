"""Whether a change made a step slower: the same benchmark on two checkouts, alternately, in one run.

    python benchmarks/trees.py OLD NEW [--pairs 8] [--width 16] [--rounds 5] [--threads 1 --clock cpu]

OLD and NEW are checkouts. Each pair times SORA's step (`textbook.py --only sora`) and the steps of the main
methods (`step.py`) in a fresh process per checkout; a ratio is NEW over OLD inside a pair, given by its
quartiles.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy


def call(tree: Path, script: str, *flags: str) -> str:
    """Run a benchmark of a checkout with that checkout's own package."""
    env = os.environ | {"PYTHONPATH": str(tree / "src")}
    command = [sys.executable, str(tree / "benchmarks" / script), *flags]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def measure(tree: Path, flags: list[str]) -> dict[str, float]:
    """Median seconds per step: SORA alone in a process, and the main methods beside each other."""
    seconds = {"textbook.py, sora": float(call(tree, "textbook.py", "--only=sora", *flags))}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.json"
        call(tree, "step.py", *flags, f"--out={file}")
        rows = json.loads(file.read_text())["relative to fgsm-rs"]
    return seconds | {f"step.py, {row['name']}": row["ms"] / 1e3 for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--pairs", type=int, default=8)
    for name, default in (("width", "16"), ("rounds", "5"), ("threads", "2"), ("clock", "wall")):
        parser.add_argument(f"--{name}", default=default)
    flags = parser.parse_args()
    shared = [f"--{name}={getattr(flags, name)}" for name in ("width", "rounds", "threads", "clock")]
    pairs = []
    for number in range(flags.pairs):
        order = (flags.old, flags.new) if number % 2 == 0 else (flags.new, flags.old)
        times = {tree: measure(tree, shared) for tree in order}
        pairs.append((times[flags.old], times[flags.new]))
        print(f"pair {number + 1} of {flags.pairs}", file=sys.stderr)
    print(f"NEW / OLD, {flags.pairs} pairs, width {flags.width}: quartiles")
    for name in pairs[0][0]:
        low, middle, high = numpy.quantile([new[name] / old[name] for old, new in pairs], (0.25, 0.5, 0.75))
        print(f"{name:<36} {low:.3f}  {middle:.3f}  {high:.3f}")


if __name__ == "__main__":
    main()
