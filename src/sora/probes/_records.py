"""What the files of runs contain, as far as they can be read, and finished runs side by side."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sora.errors import RunError, UserError
from sora.evaluation.records import with_later_results
from sora.experiments import paper
from sora.experiments.compare import attacks_of, compare_summaries, radius, row_names, variant_key
from sora.runs import LOGS, RunFolder, find_runs, unique_labels

Rows = list[dict[str, Any]]
# What reading or drawing a file of an unexpected shape may raise: the rest is shown without that part.
DAMAGE = (RunError, UserError, OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
TITLES = {"clean": "clean", "fgsm": "FGSM", "pgd10": "PGD-10", "pgd50": "PGD-50", "aa": "AutoAttack"}


@dataclass(frozen=True)
class Missing:
    """Something that is not shown, and the command that would make it."""

    what: str
    command: str = ""


@dataclass
class RunRecord:
    """One run, as far as its files can be read."""

    folder: RunFolder
    label: str  # its name among the other runs
    config: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)  # with later evaluations; empty until it ends
    logs: dict[str, Rows] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)

    def attempt(self, what: str, action: Callable[[], Any], otherwise: Any = None) -> Any:
        """Return the result of `action`; if the files do not allow it, note that and return `otherwise`."""
        try:
            return action()
        except DAMAGE as error:
            reason = str(error) if isinstance(error, (RunError, UserError)) else type(error).__name__
            self.missing.append(Missing(f"{what} cannot be shown: {reason[:300]}"))
            return otherwise

    @property
    def path(self) -> str:
        """The folder as a word of a shell command."""
        own = self.folder.results == self.folder.path  # not a model of the zoo
        return shlex.quote(str(self.folder.path) if own else self.folder.name)


def read_runs(paths: Iterable[str | Path]) -> list[RunRecord]:
    """Read all runs at and below the paths, each under a label of its own."""
    folders = find_runs(paths)
    runs = [RunRecord(*pair) for pair in zip(folders, unique_labels(folders), strict=True)]
    for run in runs:
        run.config = run.attempt("settings", run.folder.read_config, {})
        for log in LOGS:
            run.logs[log] = run.attempt(f"{log}.jsonl", partial(run.folder.read_log, log), [])
        if run.folder.is_finished():
            run.summary = run.attempt("summary.json", partial(with_later_results, run.folder), {})
    return runs


def alarms_of(events: Rows) -> list[int]:
    """Return the steps of a run's alarms."""
    return [row["step"] for row in events if row.get("event") == "alarm"]


def method_of(config: Mapping[str, Any]) -> str:
    """Return the method of a run, by its stored settings."""
    return str((config.get("threat") or {}).get("method") or "")


def title_of(attack: str) -> str:
    """Return an attack's name in a heading."""
    return TITLES.get(attack, attack)


@dataclass(frozen=True)
class ComparedRow:
    """One row of a comparison: the means over the seeds, and the runs."""

    name: str
    entry: Mapping[str, Any]
    runs: Sequence[RunRecord] = ()


@dataclass(frozen=True)
class Setting:
    """What runs must share to be compared: data set, model and threat."""

    dataset: str
    model: str
    radius: str  # with the norm unless it is linf
    attack: str  # whose accuracy is called robust, the same in all settings
    rows: Sequence[ComparedRow]

    @property
    def name(self) -> str:
        """The setting in one line."""
        return ", ".join([self.dataset, self.model, *([f"eps {self.radius}"] if self.radius else [])])

    @property
    def methods(self) -> dict[str, str]:
        """The method of each row, by its name."""
        return {row.name: row.entry.get("method", row.name) for row in self.rows}

    def means(self, attack: str) -> dict[str, float]:
        """Return the mean accuracy of every row that has one under an attack."""
        found = {row.name: row.entry["accuracy"].get(attack, {}).get("mean") for row in self.rows}
        return {name: mean for name, mean in found.items() if is_known(mean)}


def is_known(value: float | None) -> bool:
    """Return whether a mean is a number."""
    return value is not None and value == value


def settings_of(runs: Sequence[RunRecord], missing: list[Missing]) -> list[Setting]:
    """Return the finished runs by setting; what cannot be compared is noted in `missing`."""
    groups: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in runs:
        try:
            summary = run.summary
            if summary.get("attacks"):
                key = (str(summary["dataset"]), str(summary["model"]), radius(summary["threat"]))
                groups.setdefault(key, []).append(run)
        except DAMAGE as error:
            missing.append(Missing(f"{run.label} cannot be compared: {type(error).__name__}"))
    found = []
    for key, members in groups.items():
        try:
            found.append((key, _rows(_without_copies(members, missing))))
        except DAMAGE as error:
            missing.append(Missing(f"{', '.join(key)} cannot be compared: {error}"))
    attacks = attacks_of([row.entry for _, rows in found for row in rows])
    robust = "pgd10" if "pgd10" in attacks or not attacks else attacks[-1]
    return [Setting(*key, robust, rows) for key, rows in found]


def _without_copies(runs: Sequence[RunRecord], missing: list[Missing]) -> list[RunRecord]:
    """Return the runs without those of the same settings and seed as an earlier one, which are noted."""
    found: dict[tuple[Any, ...], RunRecord] = {}
    for run in runs:
        try:
            key: tuple[Any, ...] = (*variant_key(run.folder, run.summary), run.summary["seed"])
        except DAMAGE:  # it is not known to be equal to another
            key = (run.label,)
        first = found.setdefault(key, run)
        if first is not run:
            what = f"{run.label} has the settings and the seed of {first.label} and is not compared."
            missing.append(Missing(what))
    return list(found.values())


def _rows(runs: Sequence[RunRecord]) -> list[ComparedRow]:
    summaries = [run.summary for run in runs]
    try:
        names = row_names([run.folder for run in runs], summaries)
    except UserError:  # settings that cannot be read: each run is a row of its own
        names = [run.label for run in runs]
    entries = compare_summaries(summaries, names, [run.folder for run in runs])["methods"]
    own = {name: [run for run, of in zip(runs, names, strict=True) if of == name] for name in entries}
    return [ComparedRow(name, entry, own[name]) for name, entry in entries.items()]


def settings_of_paper() -> list[Setting]:
    """Return the paper's own numbers in the form of finished runs."""
    grid = paper.load("main")
    settings = []
    for dataset, model in paper.pairs(grid):
        rows = []
        for name, values in paper.numbers(grid, dataset, model).items():
            means = {metric: values[metric].mean for metric in ("clean", "pgd10") if metric in values}
            accuracy = {metric: {"mean": mean / 100} for metric, mean in means.items() if mean is not None}
            rows.append(ComparedRow(name, {"accuracy": accuracy}))
        settings.append(Setting(dataset, model, "", "pgd10", rows))
    return [setting for setting in settings if setting.means("pgd10")]
