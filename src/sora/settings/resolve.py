"""From recipe, file, stored run and explicit values to the settings of one run, with each value's origin.

`sora train`, `compare`, `demo` and `sora.fit` all come through here. Later layers win: defaults, the recipe,
what the recipe says about the method, the config file, what it says about the method, explicit flags or
arguments. A resumed run starts from its stored settings in place of the recipe.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from sora import data, methods
from sora._typed import coerce
from sora.errors import UserError, unknown
from sora.methods import Smoothing
from sora.settings import recipes
from sora.settings.fields import MAY_CHANGE, Settings, is_custom, is_given, run_path
from sora.settings.files import (
    CONFIG_FORMAT,
    ConfigFile,
    check_data_dir,
    check_place,
    parse_config,
    read_config_file,
    to_yaml,
)
from sora.settings.recipes import Recipe

DEFAULT, STORED, GRID = "default", "stored run", "grid"  # origins of values


class Layer(NamedTuple):
    """Values and where they come from."""

    origin: str
    values: Mapping[str, Any]
    explicit: bool = False  # whether the user named them in this call


@dataclass(frozen=True)
class Resolved:
    """Settings with nothing left open, and the origin of each value."""

    settings: Settings
    origins: Mapping[str, str]
    """By name; hyper-parameters as `set.sora.alpha0`. A value that is missing here is a default."""
    recipes: tuple[str, ...] = ()

    def announcement(self) -> str:
        """Return which recipe is used, and what its reader should know; empty without one."""
        if not self.recipes:
            return ""
        chosen, model = [recipes.read(name) for name in self.recipes], self.settings.model
        notes = [recipe.note.rstrip(".") for recipe in chosen if recipe.note][-1:]
        meant = next((r.values["model"] for r in reversed(chosen) if "model" in r.values), model)
        if meant != model and not is_given(model):
            hint = "; --recipe vit-adamw is for transformers" if model.startswith("vit") else ""
            notes.insert(0, f"made for {meant}, not for {model}{hint}")
        line = f"recipe: {' + '.join(self.recipes)}"
        return f"{line} ({'. '.join(notes)})" if notes else line

    def described(self) -> str:
        """Return all settings as YAML with each value's origin behind it."""
        head = f"# {self.announcement()}\n" if self.recipes else ""
        names = list(self.settings.flat()) + [f"set.{key}" for key in self.settings.set]
        return head + to_yaml(self.settings, {name: self.origins.get(name, DEFAULT) for name in names})

    def record(self) -> dict[str, Any]:
        """Return all settings with their origins, for JSON."""
        about = {"origins": dict(self.origins), "recipes": list(self.recipes)}
        return {"settings": self.settings.flat(), **about}

    def stored(self, before: Mapping[str, Any] | None = None) -> str:
        """Return the content of `config.yaml`: enough to run again, and where each value came from.

        Of a run that is extended, recipe and place of the data stay as they were `before`.
        """
        recipe, absolute = "+".join(self.recipes) or None, self.settings.absolute_data()
        about = {"format": CONFIG_FORMAT, "recipe": recipe, "absolute": absolute}
        about |= {key: before[key] for key in ("recipe", "absolute") if before and key in before}
        origins = yaml.safe_dump({"origins": dict(self.origins)}, sort_keys=False)
        return yaml.safe_dump(about, sort_keys=False) + to_yaml(self.settings) + origins


# The settings that are used before all settings and their types are complete.
_USED_EARLY = {"dataset": str, "method": str, "model": str, "out": str | None, "seed": int}


@dataclass(frozen=True)
class Request:
    """What a user asks for, before recipe and stored run are added."""

    given: Mapping[str, Any] = field(default_factory=dict)  # explicitly; wins also where it equals a default
    source: str = "flag"  # what to call the origin of these values: `flag` or `argument`
    config: str | ConfigFile | None = None  # a YAML file, or its content
    recipe: str | None = None  # its name; default: the config file's, else the one for what is trained

    def resolve(self, stored: Mapping[str, Any] | None = None) -> Resolved:
        """Return the settings of a new run, or with `stored` of one that is resumed."""
        method = self.wanted(stored).get("method", "sora")
        if stored is not None and self.recipe not in (None, stored.get("recipe")):
            raise UserError(f"--recipe {self.recipe}: the stored run has {stored.get('recipe') or 'none'}")
        chosen = [] if stored is not None else self._recipes()
        base = [Layer(STORED, parse_config(stored, STORED).values)] if stored is not None else []
        recipe_layers = self._recipe_layers(chosen, method)
        own = (
            Layer(self._name, self._file.values),
            Layer(f"{self._name}, {method}", self._file.methods.get(method, {})),
        )
        given = Layer(self.source, self.given, explicit=True)
        values, origins = _merge([*base, *recipe_layers, *own, given], method)
        settings = Settings.build(values)
        _refuse_code_from_files(settings, origins, self.source)
        _refuse_places_from_files(settings, origins, self.source)
        _refuse_radius_of_another_norm(settings, origins, recipe_layers)
        if stored is None:
            _refuse_inverted_schedule(settings, origins)
        if isinstance(self.config, ConfigFile):  # of a run that a grid has resolved before
            origins = {
                name: self.config.origins.get(name, origin) if origin == GRID else origin
                for name, origin in origins.items()
            }
        return Resolved(settings, origins, tuple(recipe.name for recipe in chosen))

    def path(self) -> Path:
        """Return the run folder this request names, before any other setting is checked."""
        return run_path(self.wanted())

    def wanted(self, stored: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the values given explicitly or in the file, over a stored run; recipes depend on them."""
        base = parse_config(stored, STORED).values if stored is not None else {}
        if "out" not in self.given:
            check_place("out", self._file.values.get("out"), self._name)
        wanted = {**base, **self._file.values, **self.given}
        for name, kind in _USED_EARLY.items():
            if name in wanted:
                wanted[name] = coerce(name, wanted[name], kind)
        return wanted

    @property
    def _name(self) -> str:
        """The config file in messages and origins."""
        return self.config if isinstance(self.config, str) else GRID

    @cached_property
    def _file(self) -> ConfigFile:
        if isinstance(self.config, ConfigFile):
            return self.config
        return ConfigFile() if self.config is None else read_config_file(self.config)

    def _recipes(self) -> list[Recipe]:
        wanted, name = self.wanted(), self.recipe or self._file.recipe
        dataset = wanted.get("dataset", "digits")
        if name is None:
            return recipes.choose(dataset, wanted)
        parts = [recipe for part in name.split("+") for recipe in recipes.chain(part, dataset)]
        intended = next((r.name for r in reversed(parts) if r.name in data.names()), dataset)
        if intended != dataset:
            raise UserError(f"recipe {name} is for {intended}; pass --dataset {intended}")
        return list({recipe.name: recipe for recipe in parts}.values())

    def _recipe_layers(self, chosen: list[Recipe], method: str) -> list[Layer]:
        models: list[str | None] = []  # that the recipes are made for
        for recipe in chosen:
            models.append(recipe.values.get("model") or (models[-1] if models else None))
        trained = self.wanted().get("model") or (models[-1] if models else None)
        general = [
            Layer(f"recipe {recipe.name}", _for_method(_for_model(recipe.values, trained, model), method))
            for recipe, model in zip(chosen, models, strict=True)
        ]
        special = [
            Layer(f"recipe {recipe.name}, {method}", recipe.methods.get(method, {})) for recipe in chosen
        ]
        return general + special


def _for_model(values: Mapping[str, Any], trained: str | None, intended: str | None) -> dict[str, Any]:
    """Return a recipe's values; without those of its own model if another one is trained."""
    if trained == intended:
        return dict(values)
    about = ("model", "width", "mean", "std") if is_custom(trained or "") else ("model", "width")
    kept = {key: value for key, value in values.items() if key not in about}
    kept["set"] = {key: v for key, v in values.get("set", {}).items() if not key.startswith("model.")}
    return kept


def _for_method(values: Mapping[str, Any], method: str) -> Mapping[str, Any]:
    """Return a recipe's values; without smoothed labels if the method has targets of its own."""
    if not methods.info(method).own_targets:
        return values
    labels = [field.name for field in dataclasses.fields(Smoothing)]
    return {key: value for key, value in values.items() if key not in labels}


def _merge(layers: list[Layer], method: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge all layers; return the values and the layer of each. `set` is merged key by key."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    options: dict[str, Any] = {}
    for origin, layer, explicit in layers:
        for key, value in layer.items():
            if key != "set":
                values[key], origins[key] = value, origin
                continue
            check_options(value or {}, method)
            known = (methods.info(method).family, "model")  # explicit ones of others stay, to be refused
            own = {name: v for name, v in (value or {}).items() if explicit or name.split(".")[0] in known}
            options |= own
            origins |= {f"set.{name}": origin for name in own}
    return {**values, "set": options}, origins


def check_options(options: Mapping[str, Any], method: str) -> None:
    """Raise for a `set` key that no method has; the network checks its own when it is built.

    The error lists the keys of the method that the key names, of `method` if it names none.
    """
    if not isinstance(options, Mapping):
        raise UserError(f"set is {options!r}; expected a table of names and values")
    for key in map(str, options):
        named = key.partition(".")[0]
        if named == "model":
            continue
        entry = methods.info(named if named in methods.names() else method)
        allowed = [f"{entry.family}.{option.name}" for option in dataclasses.fields(entry.cls.hyper_class)]
        if key not in allowed:
            raise unknown("--set key", key, allowed)


def _refuse_code_from_files(settings: Settings, origins: Mapping[str, str], source: str) -> None:
    """Raise for code that a file names: it is imported only if the user names it in this call."""
    model = settings.model
    if is_custom(model) and not is_given(model) and origins["model"] != source:
        raise UserError(
            f"{origins['model']} names the network {model!r}, which runs your own code; to allow it, "
            f"repeat it explicitly: --model {model}"
        )


def _refuse_places_from_files(settings: Settings, origins: Mapping[str, str], source: str) -> None:
    """Raise for a place to write to outside the working directory that only a file names."""
    if origins.get("out", DEFAULT) not in (source, STORED):
        check_place("out", settings.out, origins.get("out", DEFAULT))
    if origins.get("data_dir", DEFAULT) != source:
        check_data_dir(settings.dataset, settings.data_dir, origins.get("data_dir", DEFAULT))


def _refuse_radius_of_another_norm(
    settings: Settings, origins: Mapping[str, str], recipe_layers: list[Layer]
) -> None:
    """Raise for a radius that nobody chose with another norm than the recipe's, which is linf by default."""
    origin = origins.get("eps", DEFAULT)
    chosen = origin != DEFAULT and origin not in [layer.origin for layer in recipe_layers]
    intended = next(
        (layer.values["norm"] for layer in reversed(recipe_layers) if "norm" in layer.values), "linf"
    )
    if not chosen and settings.norm != intended:
        raise UserError(
            f"eps {settings.eps} ({origin}) is meant for {intended}; pass --eps for {settings.norm}, e.g."
            f" {'0.5' if settings.norm == 'l2' else '8/255'}"
        )


def _refuse_inverted_schedule(settings: Settings, origins: Mapping[str, str]) -> None:
    """Raise for a smallest learning rate above the highest."""
    if settings.schedule != "multistep" and settings.lr_min > settings.lr:
        raise UserError(
            f"lr_min {settings.lr_min:g} ({origins.get('lr_min', DEFAULT)}) is above lr {settings.lr:g};"
            f" pass a smaller --lr-min, e.g. {settings.lr / 20:g}"
        )


def differences(stored: Mapping[str, Any], settings: Settings) -> list[str]:
    """Return the settings that a resumed run changes although it may not, as text."""
    old, new = parse_config(stored, STORED).values, settings.flat()
    changed = [key for key in new if key not in MAY_CHANGE and key in old and old[key] != new[key]]
    return [f"{key} {old[key]!r} -> {new[key]!r}" for key in changed]
