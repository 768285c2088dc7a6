"""Which runs a grid consists of: every variant with every seed, each with its own part of the recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sora import methods
from sora._reading import absolute
from sora._typed import coerce
from sora.errors import UserError
from sora.experiments.variants import Variant, check_distinct, options_of
from sora.settings import Request, Resolved, Settings

MAX_SEEDS = 1000


def method_names(text: str) -> list[str]:
    """Methods from text with commas; `all` stands for those of the paper's tables."""
    names = methods.names(in_all=True) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        methods.info(name)  # raises for an unknown one
    return list(dict.fromkeys(names))


def plan(request: Request, variants: Sequence[Variant], seeds: int, folder: Path) -> list[Resolved]:
    """The settings of every run, in the order of variants, then seeds.

    Args:
        request: What is common to all runs; what a variant says wins over it.
        variants: The rows.
        seeds: Runs per variant: seed, seed + 1, ...
        folder: Where the run folders go, NAME-sSEED each.
    """
    if not 1 <= seeds <= MAX_SEEDS:
        raise UserError(f"--seeds is {seeds}; allowed: 1 to {MAX_SEEDS}")
    check_distinct(variants)
    options, wanted = options_of(request.given), request.wanted()
    given = {key: value for key, value in request.given.items() if key != "set"}
    default = wanted.get("method", "sora")
    rows = [(variant, variant.method or default) for variant in variants]
    names = list(dict.fromkeys(method for _, method in rows))
    families = {methods.info(name).family for name in names} | {"model"}
    stray = [key for key in options if key.split(".")[0] not in families]
    if stray:
        raise UserError(f"{stray[0]!r} belongs to none of the methods {', '.join(names)}")
    first = coerce("seed", wanted.get("seed", 0), int)
    common = dataclasses.replace(request, given=given)
    return [
        _resolve(common, options, variant, method, seed, folder)
        for variant, method in rows
        for seed in range(first, first + seeds)
    ]


def _resolve(
    request: Request, options: Mapping[str, Any], variant: Variant, method: str, seed: int, folder: Path
) -> Resolved:
    family = methods.info(method).family
    common = {key: value for key, value in options.items() if key.split(".")[0] in (family, "model")}
    own = {key: value for key, value in variant.values.items() if key != "set"}
    own_options, name = options_of(variant.values), variant.stored_name
    out = str(folder / f"{variant.slug}-s{seed}")
    decided = {"method": method, "seed": seed, "variant": name, "out": out}
    given = {**request.given, **own, **decided, "set": {**common, **own_options}}
    resolved = dataclasses.replace(request, given=given).resolve()
    named = [*own, *(f"set.{key}" for key in own_options)] if name else []
    origins = {**resolved.origins, **dict.fromkeys(named, f"variant {variant.name}")}
    if name is None:
        del origins["variant"]
    return dataclasses.replace(resolved, settings=_with_absolute_data(resolved.settings), origins=origins)


def _with_absolute_data(settings: Settings) -> Settings:
    """Every process of a grid is given the folder of the data in this form and stores it."""
    if settings.data_dir is None:
        return settings
    return dataclasses.replace(settings, data_dir=str(absolute(settings.data_dir)))
