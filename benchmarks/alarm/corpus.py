"""The corpus as files: one compressed CSV per data set, and the code that joins and reads them.

    python benchmarks/alarm/corpus.py --work /tmp/alarm                  # files of runs.py -> digits
    python benchmarks/alarm/corpus.py --work /tmp/cifar10 --to cifar10   # files of snapshots.py -> cifar10

The study reads them with `read_all`.
"""

import argparse
import csv
import gzip
import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from runs import COLUMNS, KEYS

HERE = Path(__file__).parent


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
    """The rows of all runs that `runs.py` or `snapshots.py` has finished."""
    for path in sorted(work.glob("*.csv.gz")):
        with gzip.open(path, "rt", newline="") as file:
            for row in csv.DictReader(file):
                yield [row[name] for name in (*KEYS, *COLUMNS)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of the files of single runs")
    parser.add_argument("--to", default="digits", help="name of the data set")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the corpus")
    args = parser.parse_args()
    rows = list(rows_of_work(args.work))
    write(rows, args.out / f"{args.to}.csv.gz")
    print(f"{len({tuple(row[:3]) for row in rows})} runs, {len(rows)} rows")


if __name__ == "__main__":
    main()
