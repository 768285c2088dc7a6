"""Every setting of a training run: typed, checked, and grouped for readers of the help and of `config.yaml`.

Each group is a dataclass of its own, so that a function can ask for the part it needs; `Settings` is all of
them together. Names are unique over all groups, which is why flags need no prefix.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sora import attacks, data, methods, models
from sora._typed import Options, option
from sora.errors import UserError
from sora.methods import Smoothing
from sora.metrics import check_metrics
from sora.threat import Threat, parse_eps, threat

GIVEN = "given:"  # prefix of the name under which a module or tensors passed to `fit` are recorded
# What may change when a run is resumed.
MAY_CHANGE = ("out", "device", "threads", "monitor", "monitor_every", "tracker", "variant")


@dataclass(frozen=True)
class DataSettings(Options):
    """Training and test data."""

    dataset: str = option("digits", "data set: a name from `sora list data`, folder:PATH or npz:PATH")
    data_dir: str | None = option(None, "folder of the data sets; default: $SORA_DATA, else the user's cache")
    augment: tuple[str, ...] = option(
        (),
        "augmentations, e.g. crop:4,flip; always applied in the order crop, flip, rotate; '' for none",
    )
    limit_train: int | None = option(
        None, "train on this many images, class-balanced; the held-out slice shrinks in proportion", low=1
    )
    limit_test: int | None = option(None, "test on this many images, class-balanced", low=1)
    holdout: int | None = option(
        None,
        "images held out from training; 0: none, as in the paper; default: the validation split if the data"
        " set has one, else 10 % of the training images, at most 1,000",
        low=0,
    )


@dataclass(frozen=True)
class NetworkSettings(Options):
    """What is trained."""

    model: str = option("preactresnet18", "network: from `sora list models`, or package.module:function")
    width: int | None = option(None, "channels of the first stage; default: the paper's", low=1)
    mean: tuple[float, ...] | None = option(None, "channel means; the network's first layer subtracts them")
    std: tuple[float, ...] | None = option(
        None, "channel deviations; the network's first layer divides by them", above=0
    )
    init: str | None = option(None, "weights to start from: safetensors, or a .pt state dict")


@dataclass(frozen=True)
class ThreatSettings(Options):
    """The training method and what it trains against."""

    method: str = option("sora", "training method: a name from `sora list methods`")
    norm: Literal["linf", "l2"] = option("linf", "norm of the perturbation")
    eps: str = option("8/255", "radius in pixel units, a number or a fraction")
    eps_warmup: float = option(0.0, "epochs over which eps grows linearly from 0", low=0)
    set: dict[str, Any] = dataclasses.field(
        default_factory=dict,
        metadata={"help": "a hyper-parameter, e.g. sora.alpha0=0.02 or model.stages=2; may be repeated"},
    )


@dataclass(frozen=True)
class OptimisationSettings(Options):
    """Optimiser and learning rate."""

    epochs: int = option(30, "passes over the training set", low=1)
    batch_size: int = option(128, "images per step", low=1)
    seed: int = option(0, "seed of initial weights, data order and noise", low=0)
    optimizer: Literal["sgd", "adamw"] = option("sgd", "optimiser")
    lr: float = option(0.2, "learning rate: the highest of the schedule", above=0)
    lr_min: float = option(
        0.01, "learning rate of the first and last step (cyclic) or of the last (cosine, one-cycle)", low=0
    )
    schedule: Literal["cyclic", "cosine", "multistep", "one-cycle"] = option(
        "cyclic", "learning rate schedule"
    )
    milestones: tuple[float, ...] = option((0.5, 0.75), "multistep: fractions of the run", low=0, high=1)
    momentum: float = option(0.9, "momentum of SGD", low=0, high=1)
    cycle_momentum: bool = option(
        False, "cyclic, one-cycle: momentum falls by 0.1 to the peak and rises again"
    )
    weight_decay: float = option(5e-4, "weight decay, on all parameters", low=0)
    ema: float | None = option(
        None, "decay of the moving average of the weights, which replaces the last weights", low=0, high=1
    )
    ema_buffers: Literal["copy", "average", "estimate"] = option(
        "copy", "BatchNorm statistics of averaged weights: the last ones, averaged too, or estimated anew"
    )
    accumulate: int = option(1, "parts a batch is split into, to save memory", low=1)
    on_nonfinite: Literal["stop", "skip"] = option("stop", "what to do when the loss is NaN or infinite")


@dataclass(frozen=True)
class WatchingSettings(Options):
    """What is evaluated, logged and kept, and what happens on an alarm."""

    eval_every: int = option(1, "epochs between evaluations while training; 0: never", low=0)
    attacks: tuple[str, ...] = option(
        ("clean", "fgsm", "pgd10"), "attacks of all evaluations, separated by commas"
    )
    guard: Literal["off", "warn", "stop", "rollback", "pgd"] = option("warn", "what to do on an alarm")
    keep: Literal["last", "best", "best-robust"] = option(
        "last",
        "weights of the final model; best-robust: of the epoch with the highest PGD-10 accuracy on held-out"
        " images; best: with the highest mean of clean and PGD-10 accuracy",
    )
    log_every: int = option(10, "steps between lines of metrics.jsonl", low=1)
    checkpoint_every: int = option(0, "steps between checkpoints; 0: one per epoch", low=0)
    snapshots: bool = option(True, "keep the weights of every epoch and around an alarm, for probes")
    monitor: tuple[str, ...] = option((), "metrics to follow while training, e.g. gradalign,aae,kl,elle,pgd")
    monitor_every: int = option(50, "steps between two measurements of the monitors", low=1)
    tracker: tuple[Literal["tensorboard", "wandb"], ...] = option(
        (), "record the run also with tensorboard, wandb or both, separated by commas; '' for none"
    )
    variant: str | None = option(None, "name of the run's row in tables; default: the method")


@dataclass(frozen=True)
class MachineSettings(Options):
    """Where and how it is computed."""

    device: str = option("auto", "cpu, cuda, cuda:1 ...; auto: a GPU if there is one")
    threads: int = option(0, "CPU threads; 0: torch's choice", low=0)
    precision: Literal["fp32", "bf16", "fp16"] = option("fp32", "number format of the network's passes")
    compile: bool = option(
        False,
        "compile both passes into one graph: takes minutes at first, then steps are faster; only for"
        " fgsm-rs, n-fgsm, sora, in one process",
    )
    sync_bn: bool = option(False, "compute BatchNorm statistics over the batch of all processes")
    out: str | None = option(None, "run folder; default: runs/DATASET-METHOD-sSEED")


GROUPS: dict[str, type[Options]] = {
    "data": DataSettings,
    "network": NetworkSettings,
    "threat": ThreatSettings,
    "labels": Smoothing,
    "optimisation": OptimisationSettings,
    "watching": WatchingSettings,
    "machine": MachineSettings,
}


@dataclass(frozen=True)
class Settings(
    MachineSettings,
    WatchingSettings,
    OptimisationSettings,
    Smoothing,
    ThreatSettings,
    NetworkSettings,
    DataSettings,
):
    """One training run. `config.yaml` in a run folder is this, fully resolved."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_given(self.dataset):
            data.check_name(self.dataset)
        if not is_custom(self.model):  # the user's own are imported later, when they are built
            models.info(self.model)
        data.Augment.parse(self.augment)
        attacks.create_all(self.attacks)  # also raises if there is none
        check_metrics(self.monitor)
        self._check_combinations()
        object.__setattr__(self, "set", self._complete_set())

    def _check_combinations(self) -> None:
        method = methods.info(self.method)
        if parse_eps(self.eps) <= 0:
            raise UserError(f"eps is {self.eps!r}; training needs more than 0")
        self.threat()  # raises for a radius that the norm does not allow
        if self.ema == 1:
            raise UserError("with ema 1.0 the average would never change; allowed: 0 to 0.99999")
        if is_custom(self.model) and (self.mean or self.std):
            raise UserError("mean and std are for the built-in networks; normalise inside your own model")
        if self.compile and not method.compilable:
            able = ", ".join(name for name in methods.names() if methods.info(name).compilable)
            raise UserError(f"compile does not work with {self.method}; allowed: {able}")
        methods.check_smoothing(method, self)
        if self.guard not in ("off", "warn") and not method.adversarial:
            raise UserError(
                f"guard {self.guard} does not apply to {self.method}, which is not adversarial training;"
                " allowed: off, warn"
            )
        if self.sync_bn and self.ema is not None and self.ema_buffers == "estimate":
            raise UserError("ema_buffers estimate does not work with sync_bn; allowed: copy, average")
        if self.keep != "last" and (self.holdout == 0 or not 0 < self.eval_every <= self.epochs):
            raise UserError(
                f"keep {self.keep} compares epochs on held-out images;"
                " holdout and eval_every must be 1 or more, and eval_every at most epochs"
            )
        for key in self.set:
            if key.split(".")[0] not in (method.family, "model"):
                raise UserError(f"{key!r} is not an option of {self.method}")

    def _complete_set(self) -> dict[str, Any]:
        """Return `set` with every hyper-parameter of the method, including defaults."""
        family, hyper = methods.info(self.method).family, self.hyper()
        names = [field.name for field in dataclasses.fields(hyper)]
        return self.set | {f"{family}.{name}": getattr(hyper, name) for name in names}

    def hyper(self) -> methods.Hyper:
        """Return the method's hyper-parameters: its preset, changed by `set`."""
        method = methods.info(self.method)
        return method.cls.hyper_class.build({**method.preset, **self.method_options()})

    def method_options(self) -> dict[str, Any]:
        """Return the options of the method in `set`."""
        return self._options_of(methods.info(self.method).family)

    def smoothing_options(self) -> dict[str, Any]:
        """Return the settings of the labels that the method trains with."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Smoothing)}

    def method_uses_epochs(self) -> bool:
        """Return whether the method's steps depend on the number of epochs, with the options it has here."""
        method = methods.info(self.method)
        return any(self.set.get(f"{method.family}.{name}") for name in method.uses_epochs)

    def model_options(self) -> dict[str, Any]:
        """Return the options of the model in `set`."""
        return self._options_of("model")

    def _options_of(self, prefix: str) -> dict[str, Any]:
        return {key.split(".", 1)[1]: v for key, v in self.set.items() if key.startswith(f"{prefix}.")}

    def threat(self) -> Threat:
        """Return the norm ball that `norm` and `eps` describe, around images in [0, 1]."""
        return threat(self.norm, self.eps)

    def absolute_data(self) -> dict[str, str | None]:
        """Return `dataset` and `data_dir` with absolute paths, so that another folder finds the data."""
        name, colon, place = self.dataset.partition(":")
        if colon and not is_given(self.dataset):
            path, mark, options = place.partition("?")
            place = f"{Path(path).expanduser().absolute()}{mark}{options}"
        root = None if self.data_dir is None else str(Path(self.data_dir).expanduser().absolute())
        return {"dataset": f"{name}{colon}{place}", "data_dir": root}

    def folder(self) -> Path:
        """Return the run folder."""
        return run_path(vars(self))

    def flat(self) -> dict[str, Any]:
        """Return all values by name, with lists in place of tuples, in the order of the groups."""
        return {name: _listed(getattr(self, name)) for name in field_names()}


def is_given(name: str) -> bool:
    """Return whether the name stands for an object passed in Python, which cannot be rebuilt from a file."""
    return name.startswith(GIVEN)


def is_custom(model: str) -> bool:
    """Return whether a model is the user's own: a module given in Python, or `package.module:function`."""
    return ":" in model


def field_names() -> list[str]:
    """Return the name of every setting, in the order of the groups."""
    return [field.name for group in GROUPS.values() for field in dataclasses.fields(group)]


def run_path(values: Mapping[str, Any]) -> Path:
    """Return the run folder that settings name, also before they are complete."""
    if values.get("out"):
        return Path(values["out"])
    dataset, method, seed = (values.get(key, default) for key, default in _NAMING.items())
    safe = "".join(c if c.isalnum() else "-" for c in str(dataset)).strip("-")
    return Path(f"runs/{safe}-{method}-s{seed}")


_NAMING = {"dataset": "digits", "method": "sora", "seed": 0}


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
