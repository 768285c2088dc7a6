"""All settings of a run, typed and checked; and where each comes from: recipe, then file, then flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from sora import data, methods, models
from sora._typed import Options, option
from sora.attacks import parse as parse_attack
from sora.errors import UserError, unknown
from sora.evaluation.diagnostics import check_names
from sora.threat import Threat, parse_eps, threat

RESUMABLE = ("out", "device", "threads", "monitor", "monitor_every")  # may differ when a run goes on


@dataclasses.dataclass(frozen=True)
class TrainConfig(Options):
    """One training run. `config.yaml` in a run folder is this, fully resolved."""

    dataset: str = option("digits", "data set: a name from `sora list data`, folder:PATH or npz:PATH")
    data_dir: str | None = option(None, "where data sets live; else $SORA_DATA, else the user's cache")
    model: str = option("preactresnet18", "network: from `sora list models`, or package.module:function")
    width: int | None = option(None, "channels of the first stage; none: the paper's", low=1)
    method: str = option("sora", "training method: a name from `sora list methods`")
    set: dict[str, Any] = dataclasses.field(
        default_factory=dict, metadata={"help": "hyper-parameters, e.g. sora.alpha0=0.02 or model.stages=2"}
    )
    norm: Literal["linf", "l2"] = option("linf", "norm of the perturbation")
    eps: str = option("8/255", "radius in pixel units, a number or a fraction")
    epochs: int = option(30, "passes over the training set", low=1)
    batch_size: int = option(128, "images a step", low=1)
    seed: int = option(0, "seed of initial weights, data order and noise", low=0)
    optimizer: Literal["sgd", "adamw"] = option("sgd", "optimiser")
    lr: float = option(0.2, "highest learning rate", above=0)
    lr_min: float = option(0.01, "learning rate at the ends (cyclic) or at the end (cosine)", low=0)
    schedule: Literal["cyclic", "cosine", "multistep"] = option("cyclic", "learning rate schedule")
    milestones: tuple[float, ...] = option((0.5, 0.75), "multistep: fractions of the run", low=0, high=1)
    momentum: float = option(0.9, "momentum of SGD", low=0, high=1)
    cycle_momentum: bool = option(False, "cyclic: momentum falls by 0.1 towards the peak and rises again")
    weight_decay: float = option(5e-4, "weight decay, on all parameters", low=0)
    augment: tuple[str, ...] = option((), "augmentation in order, e.g. crop:4,flip or flip,rotate:10")
    mean: tuple[float, ...] | None = option(None, "channel means for layer 0 of the network")
    std: tuple[float, ...] | None = option(None, "channel deviations for layer 0 of the network", above=0)
    limit_train: int | None = option(None, "train on so many images, class-balanced", low=1)
    limit_test: int | None = option(None, "test on so many images, class-balanced", low=1)
    holdout: int | None = option(None, "training images set aside to watch; none: the source's choice", low=0)
    eval_every: int = option(1, "epochs between evaluations on the held-out slice; 0: never", low=0)
    attacks: tuple[str, ...] = option(("clean", "fgsm", "pgd10"), "attacks of all evaluations")
    eps_warmup: float = option(0.0, "epochs over which eps grows linearly from 0", low=0)
    ema: float | None = option(None, "decay of averaged weights, which replace the last", low=0, high=1)
    init: str | None = option(None, "weights to start from, a safetensors file")
    on_nonfinite: Literal["stop", "skip"] = option("stop", "when the loss is NaN or infinite")
    guard: Literal["off", "warn", "stop", "rollback", "pgd"] = option("warn", "what an alarm does")
    log_every: int = option(10, "steps between lines of metrics.jsonl", low=1)
    checkpoint_every: int = option(0, "steps between checkpoints; 0: one an epoch", low=0)
    snapshots: bool = option(True, "keep the weights of every epoch and around an alarm, for probes")
    monitor: tuple[str, ...] = option(
        (), "numbers of the held-out slice to watch, e.g. gradalign,aae,kl,elle,pgd"
    )
    monitor_every: int = option(50, "steps between two looks of the monitors", low=1)
    precision: Literal["fp32", "bf16", "fp16"] = option("fp32", "number format of the network's passes")
    compile: bool = option(False, "compile both passes into one graph; minutes first, faster steps after")
    accumulate: int = option(1, "parts a batch is split into, to save memory", low=1)
    sync_bn: bool = option(False, "BatchNorm statistics over the batch of all processes")
    device: str = option("auto", "cpu, cuda, cuda:1 ...; auto: a GPU if there is one")
    threads: int = option(0, "CPU threads; 0: torch's choice", low=0)
    out: str | None = option(None, "run folder; none: runs/DATASET-METHOD-sSEED")

    def __post_init__(self) -> None:
        super().__post_init__()
        if parse_eps(self.eps) <= 0:
            raise UserError(f"eps is {self.eps!r}; training needs more than 0")
        data.info(self.dataset)
        if ":" not in self.model:  # else the user's own package.module:function
            models.info(self.model)
        entry = methods.info(self.method)
        if self.ema == 1:
            raise UserError("ema is 1.0, which never moves; allowed: 0 to 0.99999")
        if self.compile and not entry.cls.compilable:
            raise UserError("compile works with fgsm-rs, n-fgsm and sora")
        if self.guard not in ("off", "warn") and not entry.cls.aligned:
            raise UserError(
                f"guard {self.guard} needs PertAlign, which {self.method} has not; allowed: off, warn"
            )
        data.Augment.parse(self.augment)
        for name in self.attacks:
            parse_attack(name)
        check_names(self.monitor)
        for key in self.set:
            if key.split(".")[0] not in (entry.family, "model"):
                raise UserError(f"{key!r} belongs to another method than {self.method!r}")
        hyper = self.hyper()
        for field in dataclasses.fields(entry.cls.hyper_class):
            self.set[f"{entry.family}.{field.name}"] = getattr(hyper, field.name)

    def hyper(self) -> methods.Hyper:
        """The method's hyper-parameters: its preset, and what `set` says."""
        entry = methods.info(self.method)
        return entry.cls.hyper_class.build({**entry.preset, **self.hyper_table()})

    def hyper_table(self) -> dict[str, Any]:
        """What `set` says about the method."""
        return self._set_of(methods.info(self.method).family)

    def model_options(self) -> dict[str, Any]:
        """What `set` says about the model."""
        return self._set_of("model")

    def _set_of(self, prefix: str) -> dict[str, Any]:
        return {key.split(".", 1)[1]: v for key, v in self.set.items() if key.startswith(f"{prefix}.")}

    def threat(self) -> Threat:
        """The norm ball that `norm` and `eps` describe, around images in [0, 1]."""
        return threat(self.norm, self.eps)

    def folder(self) -> Path:
        """The run folder."""
        safe = self.dataset.replace(":", "-").replace("/", "-")
        return Path(self.out or f"runs/{safe}-{self.method}-s{self.seed}")

    def to_yaml(self) -> str:
        """As written to `config.yaml`."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}
        plain["set"] = {k: list(v) if isinstance(v, tuple) else v for k, v in self.set.items()}
        return yaml.safe_dump(plain, sort_keys=False)


def check_set_keys(keys: Mapping[str, Any]) -> None:
    """Raise for a `set` key that no method and no model has."""
    allowed = {
        f"{methods.info(name).family}.{field.name}"
        for name in methods.names()
        for field in dataclasses.fields(methods.info(name).cls.hyper_class)
    }
    for key in keys:
        if key not in allowed and not key.startswith("model."):
            raise unknown("--set key", key, allowed)


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    folder = resources.files("sora.recipes")
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


def read_recipe(name: str) -> dict[str, Any]:
    """A recipe of the package as a table; `extends: NAME` takes over another one's."""
    if name not in recipe_names():
        raise unknown("recipe", name, recipe_names())
    table = dict(yaml.safe_load(resources.files("sora.recipes").joinpath(f"{name}.yaml").read_text()))
    base = read_recipe(table.pop("extends")) if "extends" in table else {}
    return merge(base, table)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`; the tables `set` and `methods` are merged key by key."""
    tables = {key: {**(base.get(key) or {}), **(over.get(key) or {})} for key in ("set", "methods")}
    plain = {key: value for key, value in {**base, **over}.items() if key not in tables}
    return plain | {key: table for key, table in tables.items() if table}


def read_config_file(path: str) -> dict[str, Any]:
    """A user's YAML file; `recipe: NAME` in it starts from that recipe instead of the data set's."""
    try:
        table = yaml.safe_load(Path(path).read_text())
    except FileNotFoundError:
        raise UserError(f"config file {path!r} does not exist") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"config file {path!r} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(table, dict):
        raise UserError(f"config file {path!r} holds no table of settings")
    fields = [field.name for field in dataclasses.fields(TrainConfig)]
    for key in table:
        if key not in (*fields, "methods", "recipe", "extends"):
            raise unknown(f"key in {path}", str(key), fields)
    return table


def defaults(
    dataset: str, method: str, file: Mapping[str, Any] | None = None, model: str | None = None
) -> dict[str, Any]:
    """Settings before any flag: the data set's recipe, the config file, and their words on the method.

    What a recipe says about the size of its network does not concern another `model`.
    """
    file = dict(file or {})
    recipe = file.pop("recipe", dataset.split(":")[0])
    table = read_recipe(recipe) if recipe in recipe_names() else {}
    if (model or file.get("model") or table.get("model")) != table.get("model"):
        table.pop("width", None)
        table["set"] = {key: v for key, v in table.get("set", {}).items() if not key.startswith("model.")}
    table = merge(table, file)
    per_method = table.pop("methods", {}).get(method, {})
    # A method's own words outrank the recipe's general ones, but not what the user's file says.
    table = {**table, **{key: value for key, value in per_method.items() if key not in file}}
    check_set_keys(table.get("set", {}))
    table["set"] = set_for(table.get("set", {}), method)
    return {**table, "dataset": dataset, "method": method, **({"model": model} if model else {})}


def set_for(table: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The entries of a `set` table that concern this method or the model."""
    family = methods.info(method).family
    return {key: value for key, value in table.items() if key.split(".")[0] in (family, "model")}
