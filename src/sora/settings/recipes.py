"""Recipes: the settings of a published experiment as data, one YAML file each.

A recipe is chosen by name (`--recipe`), or by what is trained: a data set's own recipe, and on top of it
those that apply to a norm or a network of that data set (`when: {norm: l2}`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import yaml

from sora.errors import unknown

_FOLDER: Any = resources.files("sora.settings") / "recipes"
ANY = "*"  # `extends: "*"`: goes on top of whichever data set's recipe


@dataclass(frozen=True)
class Recipe:
    """One file: what it sets for every method, and what for single ones."""

    name: str
    extends: str | None
    note: str  # what a reader should know, e.g. where it differs from the paper.
    when: Mapping[str, Any] = field(default_factory=dict)  # settings under which it is chosen automatically
    values: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def names() -> list[str]:
    """Return the recipes that come with the package."""
    return sorted(f.name.removesuffix(".yaml") for f in _FOLDER.iterdir() if f.name.endswith(".yaml"))


@cache  # a grid resolves hundreds of runs, each of which asks every recipe whether it applies
def read(name: str) -> Recipe:
    """Read one recipe, without those it extends."""
    if name not in names():
        raise unknown("recipe", name, names())
    values = dict(yaml.safe_load((_FOLDER / f"{name}.yaml").read_text()))
    extends, note = values.pop("extends", None), values.pop("note", "")
    when, methods = values.pop("when", {}), values.pop("methods", {})
    return Recipe(name, extends, note, when, values, methods)


def chain(name: str, dataset: str = "") -> list[Recipe]:
    """Return a recipe and those it extends, the most general first."""
    recipe = read(name)
    base = own_recipe(dataset) if recipe.extends == ANY else recipe.extends
    return [*(chain(base, dataset) if base else []), recipe]


def own_recipe(dataset: str) -> str | None:
    """Return the recipe of a data set, if it has one."""
    name = dataset.split(":")[0]
    return name if name in names() else None


def choose(dataset: str, wanted: Mapping[str, Any]) -> list[Recipe]:
    """Return the data set's recipe, if it has one, and its variants for the wanted norm or model."""
    base = own_recipe(dataset)
    if base is None:
        return []
    variants = [recipe for recipe in map(read, names()) if recipe.extends == base and recipe.when]
    fitting = [r for r in variants if all(wanted.get(key) == value for key, value in r.when.items())]
    return [*chain(base), *fitting]


def flattened(name: str) -> dict[str, Any]:
    """Return a recipe with everything it extends as one table, for people to read."""
    recipes = chain(name)
    values: dict[str, Any] = {}
    for recipe in recipes:
        values |= {**recipe.values, "set": {**values.get("set", {}), **recipe.values.get("set", {})}}
    methods = {key: dict(value) for recipe in recipes for key, value in recipe.methods.items()}
    note = recipes[-1].note or recipes[0].note
    return ({"note": note} if note else {}) | values | ({"methods": methods} if methods else {})
