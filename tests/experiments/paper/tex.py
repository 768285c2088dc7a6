"""Read every table of the paper's LaTeX source, independently of the package's own data.

`records(source)` yields each printed value in the columns of numbers.csv and in the order of the paper, with
the numbers as text so that nothing is lost to rounding.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import NamedTuple, TypeVar

import yaml

NAMES = yaml.safe_load((resources.files("sora.experiments.paper") / "names.yaml").read_text(encoding="utf-8"))
ATTACKS, DATASETS, METHODS, MODELS = (NAMES[kind] for kind in ("attacks", "datasets", "methods", "models"))
_T = TypeVar("_T")
NUMBER = r"-?\d+(?:\.\d+)?"


class Table(NamedTuple):
    """One table: what is written above it, and its rows without empty cells."""

    label: str
    caption: str
    rows: list[list[str]]


class Record(NamedTuple):
    """One value, in the columns of numbers.csv."""

    label: str
    dataset: str
    model: str
    variant: str
    metric: str
    mean: str
    std: str


def tables(source: str) -> dict[str, Table]:
    """Every table by its label."""
    source = re.sub(r"(?<!\\)%.*", "", source)
    blocks = re.findall(r"\\begin\{table\*?\}(.*?)\\end\{table\*?\}", source, re.DOTALL)
    return {table.label: table for table in map(_table, blocks)}


def records(source: str) -> Iterator[Record]:
    """Every value of every table; a table that no reader knows is an error."""
    for label, table in tables(source).items():
        for prefix, reader in READERS.items():
            if label.startswith(prefix):
                yield from reader(table)
                break
        else:
            yield from _main(table)


def _table(block: str) -> Table:
    label = _only(re.findall(r"\\label\{(tab:[^}]*)\}", block))
    body = _only(re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", block, re.DOTALL))
    body = _drop_argument(body.lstrip())  # the column specification
    body = re.sub(
        r"\\(?:top|mid|bottom)rule|\\cmidrule\(\w+\)\{[\d-]+\}|\\(?:row|cell)color\{[^}]*\}", "", body
    )
    rows = [[_plain(cell) for cell in re.split(r"(?<!\\)&", line)] for line in body.split(r"\\")]
    filled = [[cell for cell in row if cell] for row in rows]
    caption = _plain(" ".join(block.partition(r"\caption")[2].partition(r"\label")[0].split()))
    return Table(label, caption, [row for row in filled if row])


def _drop_argument(text: str) -> str:
    """The text after its first {...}, braces inside it counted."""
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if not depth:
            return text[position + 1 :]
    raise ValueError("unbalanced braces")


def _plain(cell: str) -> str:
    """A cell without markup: `\\textbf{a}` is a, `\\sfrac{8}{255}` is 8/255."""
    cell = re.sub(r"\\citep\{[^}]*\}|\(Ours\)", "", cell).replace("~", " ")
    cell = re.sub(r"\\sfrac\{(\d+)\}\{(\d+)\}", r"\1/\2", cell)
    cell = re.sub(r"\\mult(?:irow|icolumn)\{\d+\}\{\S\}", "", cell)
    cell = re.sub(r"\\textcolor\{\w+\}|\\text(?:bf|sc)?(?=\{)|\\mathcal|\\bf\b|\\[()]", "", cell)
    cell = re.sub(r"\\eps(?:ilon)?\b", "eps", cell)
    for command, sign in {"times": "x", "pm": "±", "approx": "about", "%": "%"}.items():
        cell = cell.replace(f"\\{command}", sign)
    return " ".join(re.sub(r"[{}$]", "", cell).split())


def _main(table: Table) -> Iterator[Record]:
    """All methods on one data set and model, which the caption names."""
    dataset, model = _only(re.findall(r"for (\S+) on the (\S+) architecture", table.caption))
    yield from _by_attack(table, DATASETS[dataset], MODELS[model], METHODS)


def _by_attack(table: Table, dataset: str, model: str, names: Mapping[str, str]) -> Iterator[Record]:
    header, *rows = table.rows
    for name, *cells in rows:
        for attack, cell in zip(header[1:], cells, strict=True):
            yield Record(table.label, dataset, model, names[name], ATTACKS[attack], *_value(cell))


def _headline(table: Table) -> Iterator[Record]:
    """Clean and AutoAttack accuracy on two data sets, each with its gap to SORA."""
    (_, *datasets), attacks, *rows = table.rows
    columns = list(zip([name for name in datasets for _ in range(2)], attacks, strict=True))
    for name, *cells in rows:
        for (dataset, attack), cell in zip(columns, cells, strict=True):
            value, _, gap = cell.replace("%", "").replace(")", "").partition(" (")
            place = (table.label, DATASETS[dataset], "preactresnet18", METHODS[name])
            yield Record(*place, ATTACKS[attack], *_value(value))
            if gap:
                yield Record(*place, f"{ATTACKS[attack]}-gap", *_value(gap))


def _datasets(table: Table) -> Iterator[Record]:
    for name, *cells in table.rows[1:]:
        for metric, cell in zip(("shape", "classes", "train", "test"), cells, strict=True):
            yield Record(table.label, "", "", DATASETS[name], metric, re.sub("[ ,]", "", cell), "")


def _cost(table: Table) -> Iterator[Record]:
    for name, *cells in table.rows[1:]:
        for metric, cell in zip(("type", "forwards", "backwards", "memory"), cells, strict=True):
            yield Record(table.label, "", "", METHODS[name], metric, re.sub(r"(?<=\() ", "", cell), "")


COMPONENTS = {
    "SORA (baseline)": "sora",
    "-- Without Random Sampling": "no-sampling",
    "-- Clamping Step-Size": "clamped",
    "-- Without Optimal Step-Size": "no-optimal-step",
}


def _components(table: Table) -> Iterator[Record]:
    return _by_attack(table, "pathmnist", "preactresnet18", COMPONENTS)


def _two_lines_per_method(variant: Callable[[str, str], str]) -> Callable[[Table], Iterator[Record]]:
    """A reader of tables in which a method has a line of clean and a line of PGD-10 accuracies."""

    def read(table: Table) -> Iterator[Record]:
        (_, *columns), *lines = table.rows
        for (name, *clean), pgd10 in zip(lines[::2], lines[1::2], strict=True):
            for column, *cells in zip(columns, clean, pgd10, strict=True):
                row = variant(METHODS[name], _only(re.findall(r"\d+", column)[:1]))
                for metric, cell in zip(("clean", "pgd10"), cells, strict=True):
                    yield Record(table.label, "cifar10", "preactresnet18", row, metric, *_value(cell))

    return read


def _test_eps(table: Table) -> Iterator[Record]:
    (_, *radii), attacks, *rows = table.rows
    columns = list(zip([radius.split()[-1] for radius in radii for _ in range(2)], attacks, strict=True))
    for name, *cells in rows:
        for (radius, attack), cell in zip(columns, cells, strict=True):
            place = (table.label, "cifar10", "preactresnet18", METHODS[name], f"{ATTACKS[attack]}@{radius}")
            yield Record(*place, *_value(cell))


def _sweep(table: Table) -> Iterator[Record]:
    dataset, attack = _only(re.findall(r"sweep on (\S+) \((\S+) accuracy\)", table.caption))
    largest, (_, *first), *rows = table.rows
    columns = list(zip([_short(text) for text in largest for _ in range(3)], map(_short, first), strict=True))
    for beta, *cells in rows:
        for (alpha_max, alpha0), cell in zip(columns, cells, strict=True):
            row = f"max{alpha_max}-alpha{alpha0}-beta{_short(beta)}"
            metric = ATTACKS[attack[0].upper() + attack[1:]]
            yield Record(table.label, DATASETS[dataset], "preactresnet18", row, metric, *_value(cell))


SYMBOLS = {
    "gradalign": {r"\lambda": "lam"},
    "zerograd": {r"q_val": "q"},
    "aaer": {r"\lambda_1": "lambda-", r"\lambda_2": "", r"\lambda_3": ""},
    "nfgsm": {"k": "k", r"\alpha": "alpha"},
    "elle": {r"\lambda": "lam"},
}


def _brittleness(table: Table) -> Iterator[Record]:
    """Hyper-parameters of one baseline; a line without them belongs to those above it."""
    symbols = SYMBOLS[table.label.removeprefix("tab:brittle-")]
    header, *rows = table.rows
    assert [name for name in header if name in symbols] == list(symbols)
    row = ""
    for cells in rows:
        *settings, clean, pgd10 = cells
        dataset = DATASETS[settings.pop()] if "Dataset" in header else "pathmnist"
        if settings:
            named = zip(symbols.values(), map(_short, settings), strict=True)
            row = "-".join(f"{symbol}{value}" for symbol, value in named)
        for metric, cell in (("clean", clean), ("pgd10", pgd10)):
            yield Record(table.label, dataset, "preactresnet18", row, metric, *_value(cell))


def _l2(table: Table) -> Iterator[Record]:
    dataset = ""
    for cells in table.rows[1:]:
        *above, model, clean, pgd10 = cells
        dataset = DATASETS[above[0]] if above else dataset
        for metric, cell in (("clean", clean), ("pgd10", pgd10)):
            yield Record(table.label, dataset, MODELS[model], "sora", metric, *_value(cell))


READERS: dict[str, Callable[[Table], Iterator[Record]]] = {
    "tab:results": _headline,
    "tab:datasets": _datasets,
    "tab:computational_cost": _cost,
    "tab:ablation-components": _components,
    "tab:batchsize-ablation": _two_lines_per_method(lambda method, size: f"{method}-b{size}"),
    "tab:training-epsilon-ablation": _two_lines_per_method(lambda method, eps: f"{method}-eps{eps}"),
    "tab:eps-results": _test_eps,
    "tab:sora_sweep": _sweep,
    "tab:brittle": _brittleness,
    "tab:l2results": _l2,
}


def _value(cell: str) -> tuple[str, str]:
    """Mean and deviation as printed; the deviation is empty where there is none."""
    match = re.fullmatch(rf"({NUMBER})(?: ± ({NUMBER}))?", cell)
    if not match:
        raise ValueError(f"not a value: {cell!r}")
    return match[1], match[2] or ""


def _short(text: str) -> str:
    """The number in a text as short as possible: `alpha_max = 2.0 eps` is 2, `eps` alone is 1."""
    return f"{float(_only(re.findall(NUMBER + '(?= ?eps|$)', text) or ['1'])):g}"


def _only(values: list[_T]) -> _T:
    """The only one of the values."""
    (value,) = values
    return value
