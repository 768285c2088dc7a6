"""What `sora reproduce` is asked for: a table of the paper, at which size, and the runs this takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sora.attacks import create_all
from sora.errors import unknown
from sora.experiments import paper
from sora.experiments.paper import Grid
from sora.experiments.variants import Variant, plan
from sora.settings import Request, Resolved

PAPER_SEEDS = 3
# The paper trains on all images and reports the last weights. Nothing is evaluated or kept between epochs,
# which does not change the weights.
PROTOCOL: Mapping[str, Any] = {"holdout": 0, "eval_every": 0}
SCALED = ("epochs", "width", "limit_train", "limit_test", "batch_size")  # settings that make a run smaller
MAIN = "main"  # the grid from whose runs derived tables are made


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
    config: str | None = None  # a YAML file of settings in which every run differs from the paper

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
        chosen = [row for row in rows if row.name in self.methods or row.method in of_method]
        return chosen if self.methods else rows

    def full_runs(self) -> list[Resolved]:
        """Resolve the runs under the paper's protocol, at full size."""
        return self._plan(self.variants(), {}, None)

    def runs(self) -> list[Resolved]:
        """Resolve the runs to compute, scaled down where asked."""
        if not self.scale:
            return self._plan(self.variants(), {}, self.config)
        full = {row_of(run): run.settings for run in self.full_runs()}
        longest = max(settings.epochs for settings in full.values())
        variants = [_shortened(v, full[v.name].epochs, longest, self.scale) for v in self.variants()]
        scale, images = dict(self.scale), self.scale.get("limit_train")
        if images and any(settings.batch_size > images for settings in full.values()):
            scale["batch_size"] = images  # a row's own batch size wins over it
        return self._plan(variants, scale, self.config)

    def _plan(
        self, variants: Sequence[Variant], scale: Mapping[str, Any], config: str | None
    ) -> list[Resolved]:
        names = {"dataset": self.dataset_name, "model": self.model_name}
        protocol = {} if self.grid.recipe else PROTOCOL
        common = {**names, **self.grid.settings, **protocol, "attacks": self.attack_names, "snapshots": False}
        request = Request({**common, **self.given, **scale}, config=config, recipe=self.grid.recipe)
        return plan(request, variants, self.seeds, self.folder)

    @property
    def in_paper(self) -> tuple[str, str]:
        """Data set and model of the paper's values: those trained here, or its first if it lacks them."""
        named = (self.dataset_name, self.grid.datasets), (self.model_name, self.grid.models)
        dataset, model = (name if name in known or not known else known[0] for name, known in named)
        return dataset, model


def row_of(run: Resolved) -> str:
    """Return the row of the table that a run belongs to."""
    return run.settings.variant or run.settings.method


def _shortened(variant: Variant, own: int, longest: int, scale: Mapping[str, Any]) -> Variant:
    """Scale the epochs of a row that has fewer than the others: Free AT replays each batch."""
    if "epochs" not in scale or own == longest:
        return variant
    return Variant(variant.name, {**variant.values, "epochs": max(1, round(scale["epochs"] * own / longest))})
