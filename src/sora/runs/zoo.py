"""Trained models that come with the package: run folders that are only read, named `zoo:NAME`."""

import json
from pathlib import Path
from typing import Any

from sora.errors import unknown

PREFIX = "zoo:"
CARD = "model_card"
_FOLDER = Path(__file__).parents[1] / "zoo"


def names() -> list[str]:
    """Return the models of the zoo."""
    return sorted(entry.parent.name for entry in _FOLDER.glob(f"*/{CARD}.md"))


def places(path: str | Path) -> tuple[Path, Path]:
    """Return the folder of a run, and where results go that are measured later.

    These are the same, except for a model of the zoo: its results go to a folder in the working directory.
    """
    name = str(path).removeprefix(PREFIX)
    if name == str(path):
        return Path(path), Path(path)
    if name not in names():
        raise unknown("model of the zoo", str(path), [PREFIX + each for each in names()])
    return _FOLDER / name, Path("runs") / f"zoo-{name}"


def card(path: str, suffix: str = ".md") -> str:
    """Return the card of a model: how it was trained, what was measured, its limits; `.json` for programs."""
    return (places(path)[0] / f"{CARD}{suffix}").read_text(encoding="utf-8")


def entries() -> list[dict[str, Any]]:
    """Return one row for each model: what it is, its accuracies in per cent, and the verdict on it."""
    rows = []
    for name in names():
        facts = json.loads(card(PREFIX + name, ".json"))
        (measured,) = facts["evaluations"]
        shares = {attack: f"{100 * share:.1f}" for attack, share in measured["accuracy"].items()}
        row = {"model": PREFIX + name, "trained with": facts["training"]["method"]}
        row |= {"data set": facts["dataset"], "threat": f"{facts['training']['norm']} {facts['eps']}"}
        rows.append(row | shares | {"n": measured["attacks"]["clean"]["n"], "verdict": facts["verdict"]})
    return rows
