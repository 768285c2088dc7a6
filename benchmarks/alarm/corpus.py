"""The corpus as files: one compressed CSV per data set, and the code that joins and reads them.

    python benchmarks/alarm/corpus.py --work /tmp/alarm                      # files of runs.py -> digits
    python benchmarks/alarm/corpus.py --folders RUN [RUN ...] --to cifar10   # run folders of sora train

A run folder needs `--log-every 1 --monitor fgsm,pgd,pertalign,altpertalign --monitor-every 5`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from runs import COLUMNS, short, specs
from sora.runs import RunFolder

HERE = Path(__file__).parent
KEYS = ("method", "setting", "seed")


@dataclass
class Trace:
    """All numbers of one run; a value that was not measured at a step is NaN."""

    dataset: str
    method: str
    setting: str
    seed: int
    columns: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in COLUMNS})

    @property
    def name(self) -> str:
        """Names the run in tables."""
        return f"{self.dataset} {self.method} {self.setting} s{self.seed}"

    def __getitem__(self, column: str) -> list[float]:
        return self.columns[column]

    def measured(self, *columns: str) -> list[tuple[float, ...]]:
        """The rows of these columns at which the last of them was measured."""
        rows = zip(*(self.columns[name] for name in columns), strict=True)
        return [row for row in rows if not math.isnan(row[-1])]


def read(dataset: str, folder: Path = HERE) -> list[Trace]:
    """The runs of one data set; none if there is no file of it."""
    path = folder / f"{dataset}.csv.gz"
    if not path.exists():
        return []
    traces: dict[tuple[str, ...], Trace] = {}
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            key = tuple(row[name] for name in KEYS)
            if key not in traces:
                traces[key] = Trace(dataset, row["method"], row["setting"], int(row["seed"]))
            for name in COLUMNS:
                traces[key].columns[name].append(float(row[name]) if row[name] else math.nan)
    return list(traces.values())


def read_all(folder: Path = HERE) -> list[Trace]:
    """The runs of all data sets."""
    names = sorted(path.name.removesuffix(".csv.gz") for path in folder.glob("*.csv.gz"))
    return [trace for name in names for trace in read(name, folder)]


def write(rows: Iterable[list[str]], path: Path) -> None:
    """Write the file of a data set; the same rows give the same bytes."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*KEYS, *COLUMNS])
    table.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


def rows_of_work(work: Path) -> Iterator[list[str]]:
    """The rows of all runs that `runs.py` has finished, in the order of its list."""
    for spec in specs():
        path = work / f"{spec.name}.csv.gz"
        if path.exists():
            with gzip.open(path, "rt", newline="") as file:
                for row in csv.DictReader(file):
                    yield [spec.method, spec.setting, str(spec.seed), *(row[name] for name in COLUMNS)]


def rows_of_folder(path: Path) -> Iterator[list[str]]:
    """The rows of one finished run folder."""
    config = yaml.safe_load((path / "config.yaml").read_text())
    key = [config["threat"]["method"], f"eps{config['threat']['eps']}".replace("/", "-")]
    key.append(str(config["optimisation"]["seed"]))
    folder = RunFolder(path)
    measured: dict[int, dict[str, Any]] = {line["step"]: line for line in folder.read_log("monitors")}
    for line in folder.read_log("metrics"):
        found = measured.get(line["step"], {})
        row = {"look": found.get("pertalign"), "alt": found.get("altpertalign")} | found | line
        yield [*key, str(line["step"]), *(short(row.get(name)) for name in COLUMNS[1:])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, help="folder of the files that runs.py wrote")
    parser.add_argument("--folders", nargs="*", type=Path, default=[], help="run folders of sora train")
    parser.add_argument("--to", default="digits", help="name of the data set")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the corpus")
    args = parser.parse_args()
    rows = list(rows_of_work(args.work)) if args.work else []
    for folder in args.folders:
        if (folder / "summary.json").exists():
            rows += rows_of_folder(folder)
    write(rows, args.out / f"{args.to}.csv.gz")
    print(f"{len({tuple(row[:3]) for row in rows})} runs, {len(rows)} rows")


if __name__ == "__main__":
    main()
