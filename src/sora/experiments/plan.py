"""Which runs a grid consists of: every variant with every seed, each with its own part of the recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sora import methods
from sora._typed import coerce
from sora.errors import UserError
from sora.experiments.variants import Variant, check_distinct
from sora.settings import Request, Resolved

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
    given = dict(request.given)
    options = given.pop("set", {})
    names = list(dict.fromkeys(variant.method for variant in variants))
    families = {methods.info(name).family for name in names} | {"model"}
    stray = [key for key in options if key.split(".")[0] not in families]
    if stray:
        raise UserError(f"{stray[0]!r} belongs to none of the methods {', '.join(names)}")
    first = coerce("seed", request.wanted().get("seed", 0), int)
    common = dataclasses.replace(request, given=given)
    return [
        _resolve(common, options, variant, seed, folder)
        for variant in variants
        for seed in range(first, first + seeds)
    ]


def _resolve(
    request: Request, options: Mapping[str, Any], variant: Variant, seed: int, folder: Path
) -> Resolved:
    family = methods.info(variant.method).family
    common = {key: value for key, value in options.items() if key.split(".")[0] in (family, "model")}
    own = dict(variant.values)
    own_options = own.pop("set", {})
    decided = {"method": variant.method, "seed": seed, "out": str(folder / f"{variant.slug}-s{seed}")}
    if variant.stored_name:
        decided["variant"] = variant.stored_name
    given = {**request.given, **own, **decided, "set": {**common, **own_options}}
    resolved = dataclasses.replace(request, given=given).resolve()
    named = [*own, *(f"set.{key}" for key in own_options)] if variant.stored_name else []
    origins = {**resolved.origins, **dict.fromkeys(named, f"variant {variant.name}")}
    return dataclasses.replace(resolved, origins=origins)
