"""Which runs a comparison consists of: every method with every seed, each with its own part of the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sora import methods
from sora._typed import coerce
from sora.errors import UserError
from sora.settings import Request, Resolved

MAX_SEEDS = 1000


def method_names(text: str) -> list[str]:
    """Methods from text with commas; `all` stands for those of the paper's tables."""
    names = methods.names(in_all=True) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        methods.info(name)  # raises for an unknown one
    return list(dict.fromkeys(names))


def plan(request: Request, names: Sequence[str], seeds: int, folder: Path) -> list[Resolved]:
    """The settings of every run, in the order of methods, then seeds.

    Args:
        request: What is common to all runs.
        names: Methods to compare.
        seeds: Runs per method: seed, seed + 1, ...
        folder: Where the run folders go, METHOD-sSEED each.
    """
    if not 1 <= seeds <= MAX_SEEDS:
        raise UserError(f"--seeds is {seeds}; allowed: 1 to {MAX_SEEDS}")
    given = dict(request.given)
    options = given.pop("set", {})
    families = {methods.info(name).family for name in names} | {"model"}
    stray = [key for key in options if key.split(".")[0] not in families]
    if stray:
        raise UserError(f"{stray[0]!r} belongs to none of the methods {', '.join(names)}")
    first = coerce("seed", request.wanted().get("seed", 0), int)
    runs = []
    for name in names:
        family = methods.info(name).family
        own = {key: value for key, value in options.items() if key.split(".")[0] in (family, "model")}
        for seed in range(first, first + seeds):
            changes = {"method": name, "seed": seed, "out": str(folder / f"{name}-s{seed}"), "set": own}
            runs.append(
                Request({**given, **changes}, request.source, request.config, request.recipe).resolve()
            )
    return runs
