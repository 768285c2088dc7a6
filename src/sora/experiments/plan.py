"""Which runs a comparison consists of: every method with every seed, each with its own part of the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sora import methods
from sora.errors import UserError
from sora.settings import Request, Resolved


def method_names(text: str) -> list[str]:
    """Methods from text with commas; `all` stands for those of the paper's tables."""
    return methods.names(in_all=True) if text == "all" else [name.strip() for name in text.split(",")]


def plan(request: Request, names: Sequence[str], seeds: int, folder: Path) -> list[Resolved]:
    """The settings of every run, in the order of methods, then seeds.

    Args:
        request: What is common to all runs.
        names: Methods to compare.
        seeds: Runs per method: seed, seed + 1, ...
        folder: Where the run folders go, METHOD-sSEED each.
    """
    given = dict(request.given)
    options = given.pop("set", {})
    families = {methods.info(name).family for name in names} | {"model"}
    stray = [key for key in options if key.split(".")[0] not in families]
    if stray:
        raise UserError(f"{stray[0]!r} belongs to none of the methods {', '.join(names)}")
    first = int(request.wanted().get("seed", 0))
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
