"""Every setting of a training run: typed, checked, and grouped for readers of the help and of `config.yaml`.

`Settings` is all the groups of `sora.settings.groups` together.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sora import attacks, data, methods, metrics, models
from sora._files import plain
from sora.errors import UserError
from sora.methods import Smoothing
from sora.settings.groups import (
    GROUPS,
    DataSettings,
    MachineSettings,
    NetworkSettings,
    OptimisationSettings,
    ThreatSettings,
    WatchingSettings,
)
from sora.threat import Threat, parse_eps, threat

GIVEN = "given:"  # prefix of the name under which a module or tensors passed to `fit` are recorded
# What may change when a run is resumed.
MAY_CHANGE = ("out", "device", "threads", "monitor", "monitor_every", "tracker", "variant")


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
        for name in self.monitor:
            metrics.info(name)
        self._check_combinations()
        family, hyper = methods.info(self.method).family, self.hyper()
        names = [field.name for field in dataclasses.fields(hyper)]
        complete = self.set | {f"{family}.{name}": getattr(hyper, name) for name in names}  # with defaults
        object.__setattr__(self, "set", complete)

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
        if self.image_sizes and "setup" in method.needs:
            raise UserError(f"image_sizes does not work with {self.method}, which is made for one image size")
        if len(self.image_sizes) > self.epochs:
            raise UserError(f"image_sizes has {len(self.image_sizes)} sizes for {self.epochs} epochs")
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
        return {name: plain(getattr(self, name)) for name in field_names()}


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
    named = {"dataset": "digits", "method": "sora", "seed": 0, **values}
    safe = "".join(c if c.isalnum() else "-" for c in str(named["dataset"])).strip("-")
    return Path(f"runs/{safe}-{named['method']}-s{named['seed']}")
