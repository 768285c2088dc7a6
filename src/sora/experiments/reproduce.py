"""The runs of a table of the paper: which they are, computing them, their results by row and metric."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sora import data, models
from sora._devices import pick_device
from sora.attacks import create_all
from sora.errors import RunError, unknown
from sora.evaluation import EvaluationOptions
from sora.evaluation.records import evaluate_into, with_later_results
from sora.evaluation.subject import subject_of_run
from sora.experiments import paper
from sora.experiments.engines import Engine
from sora.experiments.grid import run_grid
from sora.experiments.paper import Grid
from sora.experiments.tables import Cell, cells_of
from sora.experiments.variants import Variant, plan
from sora.runs import RunFolder
from sora.settings import Request, Resolved, Settings, is_custom

PAPER_SEEDS = 3
# The paper trains on all images and reports the last weights. Nothing is evaluated or kept between epochs,
# which does not change the weights.
PROTOCOL: Mapping[str, Any] = {"holdout": 0, "eval_every": 0}
SCALED = ("epochs", "width", "limit_train", "limit_test", "batch_size")  # settings that make a run smaller
MAIN = "main"  # the grid from whose runs derived tables are made

Cells = dict[str, dict[str, Cell]]  # by row and metric, in per cent


@dataclass(frozen=True)
class Target:
    """What `sora reproduce` is asked for."""

    grid: Grid
    dataset: str | None = None
    model: str | None = None
    seeds: int = PAPER_SEEDS  # runs per row
    methods: tuple[str, ...] = ()  # rows to keep, by their name or their method; none: all
    attacks: tuple[str, ...] = ()  # in place of the table's
    scale: Mapping[str, Any] = field(default_factory=dict)  # settings that make the runs smaller (`SCALED`)
    given: Mapping[str, Any] = field(default_factory=dict)  # other settings, such as the device
    out: str | None = None

    @property
    def dataset_name(self) -> str:
        """The data set that is trained on; by default the paper's first."""
        return self.dataset or next(iter(self.grid.datasets), "")

    @property
    def model_name(self) -> str:
        """The model that is trained; by default the first that the paper trains on this data set."""
        trained = [model for dataset, model in paper.pairs(self.grid) if dataset == self.dataset_name]
        return self.model or next(iter(trained or self.grid.models), "")

    @property
    def folder(self) -> Path:
        """Where runs and tables go; a derived table has those of the grid it is made from."""
        if self.out:
            return Path(self.out)
        name = MAIN if self.grid.kind == "derived" else self.grid.name
        parts = [name, self.dataset_name, self.model_name]
        safe = ["".join(c if c.isalnum() else "-" for c in part).strip("-") for part in parts if part]
        return Path("runs/reproduce") / "-".join(safe)

    @property
    def attack_names(self) -> list[str]:
        """The attacks at the end of each run."""
        return [attack.name for attack in create_all(self.attacks or self.grid.attacks)]

    def variants(self) -> list[Variant]:
        """Return the chosen rows."""
        rows = list(self.grid.rows.values())
        known = [name for row in rows for name in (row.name, row.method) if name]
        for name in self.methods:
            if name not in known:
                raise unknown(f"row or method of {self.grid.name}", name, dict.fromkeys(known))
        of_method = {name for name in self.methods if name not in self.grid.rows}  # a row's own name wins
        return [
            row for row in rows if not self.methods or row.name in self.methods or row.method in of_method
        ]

    def full_runs(self) -> list[Resolved]:
        """Resolve the runs under the paper's protocol, at full size."""
        return self._plan(self.variants(), {})

    def runs(self) -> list[Resolved]:
        """Resolve the runs to compute, scaled down where asked."""
        if not self.scale:
            return self.full_runs()
        full = {_row(run): run.settings for run in self.full_runs()}
        longest = max(settings.epochs for settings in full.values())
        variants = [_shortened(v, full[v.name].epochs, longest, self.scale) for v in self.variants()]
        scale, images = dict(self.scale), self.scale.get("limit_train")
        if images and any(settings.batch_size > images for settings in full.values()):
            scale["batch_size"] = images  # a row's own batch size wins over it
        return self._plan(variants, scale)

    def _plan(self, variants: Sequence[Variant], scale: Mapping[str, Any]) -> list[Resolved]:
        names = {"dataset": self.dataset_name, "model": self.model_name}
        protocol = {} if self.grid.recipe else PROTOCOL
        common = {**names, **self.grid.settings, **protocol, "attacks": self.attack_names, "snapshots": False}
        request = Request({**common, **self.given, **scale}, recipe=self.grid.recipe)
        return plan(request, variants, self.seeds, self.folder)

    @property
    def in_paper(self) -> tuple[str, str]:
        """Data set and model of the paper's values: those trained here, or its first if it lacks them."""
        dataset, model, grid = self.dataset_name, self.model_name, self.grid
        return (
            dataset if dataset in grid.datasets or not grid.datasets else grid.datasets[0],
            model if model in grid.models or not grid.models else grid.models[0],
        )


def _row(run: Resolved) -> str:
    return run.settings.variant or run.settings.method


def _shortened(variant: Variant, own: int, longest: int, scale: Mapping[str, Any]) -> Variant:
    """Scale the epochs of a row that has fewer than the others: Free AT replays each batch."""
    if "epochs" not in scale or own == longest:
        return variant
    return Variant(variant.name, {**variant.values, "epochs": max(1, round(scale["epochs"] * own / longest))})


class TableRuns(NamedTuple):
    """The results of the runs of a table."""

    cells: Cells
    settings: dict[str, Settings]  # of the finished rows
    failed: dict[str, str]  # the error of each run that did not finish


def compute(target: Target, jobs: int, *, quiet: bool, engine: Engine | None = None) -> TableRuns:
    """Compute the runs that are missing, and read the results of all."""
    runs = target.runs()
    unfinished = [run.settings for run in runs if not RunFolder(run.settings.folder()).is_finished()]
    for dataset, data_dir in dict.fromkeys((each.dataset, each.data_dir) for each in unfinished):
        data.load(dataset, data_dir)  # raises before any process is started if the images are not here
    grid = run_grid(runs, jobs, quiet=quiet, engine=engine)
    failed = {job.name: job.error for job in grid if job.error}
    if not any(job.folder.is_finished() for job in grid):
        raise RunError(f"no run finished ({'; '.join(dict.fromkeys(failed.values()))})")
    return collect(target, runs, quiet=quiet)._replace(failed=failed)


def collect(target: Target, runs: Sequence[Resolved], *, quiet: bool = True) -> TableRuns:
    """Read the results of the finished runs among `runs`, with what was evaluated later."""
    settings: dict[str, Settings] = {}
    accuracies: dict[str, list[dict[str, float]]] = {}
    for resolved in runs:
        name, folder, own = _row(resolved), RunFolder(resolved.settings.folder()), dict[str, float]()
        if folder.is_finished():
            settings[name] = folder.read_settings()
            own = _accuracy(target, folder, resolved.settings, quiet=quiet)
        percent = {metric: 100 * value for metric, value in own.items()}
        accuracies.setdefault(name, []).append(percent)  # empty if missing: rows are compared seed by seed
    return TableRuns({name: cells_of(own) for name, own in accuracies.items()}, settings, {})


def _accuracy(target: Target, folder: RunFolder, settings: Settings, *, quiet: bool) -> dict[str, float]:
    """Read the accuracies of a run, or measure those at the radii of the table that its records lack."""
    if target.grid.kind != "evaluation":
        return dict(with_later_results(folder)["accuracy"])
    own = settings.model if is_custom(settings.model) else None
    subject = subject_of_run(str(folder.path), model=own, data_dir=settings.data_dir)
    images, chosen = subject.images()
    threats = subject.threats(",".join(target.grid.radii))
    options = EvaluationOptions(
        num_classes=subject.dataset.num_classes,
        device=pick_device(settings.device),
        progress=not quiet,
        network=subject.network,
    )
    evaluations = evaluate_into(
        folder,
        subject.model,
        images,
        threats,
        create_all(target.attack_names),
        options,
        about=subject.about | {"images": chosen},
    )
    return {
        f"{attack}@{radius}": evaluation.accuracy[attack]
        for radius, evaluation in zip(target.grid.radii, evaluations, strict=True)
        for attack in target.attack_names
        if attack in evaluation.accuracy
    }


def scaled_down(target: Target, settings: Mapping[str, Settings]) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which the runs are smaller than the paper's, as (here, there)."""
    full = {_row(run): run.settings for run in target.full_runs()}
    found: dict[str, tuple[Any, Any]] = {}
    for key in SCALED:
        pairs = Counter(
            (_size(own, key), _size(full[name], key))
            for name, own in settings.items()
            if name in full and _size(own, key) != _size(full[name], key)
        )
        if pairs:
            found[key] = pairs.most_common(1)[0][0]
    return found


def _size(settings: Settings, key: str) -> Any:
    """Return the value of one of `SCALED`; a width that is not set is the model's own."""
    value = getattr(settings, key)
    if key == "width" and value is None and not is_custom(settings.model):
        return models.info(settings.model).options.get("width")
    return value


def gaps(rows: Mapping[str, Mapping[str, Cell]], reference: str = "sora") -> Cells:
    """Add to each metric, as METRIC-gap, its distance to the reference row, seed by seed, in points."""
    result: Cells = {}
    for row, cells in rows.items():
        result[row] = dict(cells)
        for metric, own in cells.items():
            theirs = rows.get(reference, {}).get(metric)
            if theirs and row != reference:
                pairs = zip(own.values, theirs.values, strict=True)
                differences = [None if a is None or b is None else a - b for a, b in pairs]
                result[row][f"{metric}-gap"] = Cell(tuple(differences))
    return result
