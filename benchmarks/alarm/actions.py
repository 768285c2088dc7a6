"""What the guard's actions achieve, beside SORA and PGD-10 training: three seeds of each row of a grid.

    python benchmarks/alarm/actions.py digits --out runs/actions-digits
    python benchmarks/alarm/actions.py cifar10 --out runs/actions-cifar10

Trains what is missing, runs AutoAttack on 200 test images where that is missing, and prints the table.
Interrupted, the same command continues.
"""

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from sora.runs import RunFolder

HERE = Path(__file__).parent
SEEDS, IMAGES = 3, 200


def sora(*arguments: str) -> None:
    """Run a command of the package; end with it if it fails."""
    subprocess.run([sys.executable, "-m", "sora", *arguments], check=True)


def autoattack(folder: RunFolder) -> float | None:
    """The stored accuracy under AutoAttack on the few images, if there is one."""
    for record in folder.read_evaluations():
        if "aa" in record["accuracy"] and record["attacks"]["aa"]["n"] == IMAGES:
            return float(record["accuracy"]["aa"])
    return None


def evaluate(folder: RunFolder) -> float:
    """Accuracy under AutoAttack on the few images; measured if it is not stored."""
    if autoattack(folder) is None:
        sora("evaluate", str(folder.path), *f"--attacks aa --limit {IMAGES} --threads 1 --quiet".split())
    found = autoattack(folder)
    assert found is not None
    return found


def folders_of(row: str, out: Path) -> list[RunFolder]:
    """The run folders of one row of the grid, seed by seed."""
    return [RunFolder(out / f"{row.replace(' + ', '-')}-s{seed}") for seed in range(SEEDS)]


def cell(values: list[float]) -> str:
    """The mean and all values, in percent."""
    return f"{100 * mean(values):.1f} ({', '.join(f'{100 * value:.1f}' for value in values)})"


def alarms(summary: dict[str, Any]) -> str:
    """The steps of a run's alarms."""
    return "+".join(str(event["step"]) for event in summary["co"]["events"]) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", choices=("digits", "cifar10"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    args = parser.parse_args()
    grid = HERE / f"actions-{args.dataset}.yaml"
    common = ["--seeds", str(SEEDS), "--jobs", str(args.jobs), "--out", str(args.out)]
    sora("compare", "--grid", str(grid), *common, "--resume", "auto")
    rows = {row: folders_of(row, args.out) for row in yaml.safe_load(grid.read_text())["rows"]}
    with ThreadPoolExecutor(args.jobs) as pool:
        measured = {row: pool.map(evaluate, folders) for row, folders in rows.items()}
    print(f"| training | FGSM | PGD-10 | AutoAttack, n = {IMAGES} | alarms at step | verdicts |")
    print("| --- " * 6 + "|")
    for row, folders in rows.items():
        summaries = [folder.read_summary() for folder in folders]
        cells = [cell([summary["accuracy"][name] for summary in summaries]) for name in ("fgsm", "pgd10")]
        cells.append(cell(list(measured[row])))
        cells.append(", ".join(map(alarms, summaries)))
        cells.append(", ".join(summary["co"]["verdict"] for summary in summaries))
        print("| " + " | ".join([row, *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
