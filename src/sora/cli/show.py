"""`sora show`: everything about one method, model, data set or recipe."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
import yaml

from sora.cli._parse import parse
from sora.cli._tables import plain_table
from sora.errors import unknown


@dataclass(frozen=True)
class Flags:
    """Show a method, a model, a data set, or `recipe NAME`."""

    name: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(help="NAME, or recipe NAME")] = ()
    json: Annotated[bool, tyro.conf.arg(help="print as JSON")] = False


def run(argv: list[str]) -> int:
    """Find out what the name is and print it."""
    from sora import data, methods, models
    from sora.training.config import read_recipe, recipe_names

    flags = parse(Flags, argv, "show")
    words = list(flags.name)
    if words[:1] == ["recipe"]:
        _print(read_recipe(words[1] if len(words) > 1 else ""), flags.json)
        return 0
    name = " ".join(words)
    if name in methods.names():
        _show_method(name, flags.json)
    elif name in models.names():
        entry = models.info(name)
        table = {"name": name, "summary": entry.summary, "paper": entry.paper, "options": entry.options}
        _print(table, flags.json)
    elif name in data.names() and ":" not in name:
        [found] = (entry for entry in data.inventory() if entry.name == name)
        where = found.where if found.images else f"damaged: {found.damaged}" if found.damaged else "not here"
        recipe = {key: read_recipe(name)[key] for key in ("mean", "std")} if name in recipe_names() else {}
        _print(data.info(name).details | {"where": where, "recipe": recipe}, flags.json)
    else:
        recipes = [f"recipe {recipe}" for recipe in recipe_names()]
        sets = [entry for entry in data.names() if ":" not in entry]
        raise unknown("name", name, [*methods.names(), *models.names(), *sets, *recipes])
    return 0


def _print(table: dict[str, Any], as_json: bool) -> None:
    text = yaml.safe_dump(table, sort_keys=False, width=200, allow_unicode=True)
    print(json.dumps(table, indent=2) if as_json else text, end="\n" if as_json else "")


def _show_method(name: str, as_json: bool) -> None:
    from sora import methods
    from sora._typed import allowed_range

    entry = methods.info(name)
    hyper = entry.cls.hyper_class.build(dict(entry.preset))
    rows: list[dict[str, Any]] = [
        {
            "hyper-parameter": f"{entry.family}.{field.name}",
            "default": getattr(hyper, field.name),
            "allowed": allowed_range(field.metadata) or "-",
            "what it is": field.metadata["help"],
        }
        for field in dataclasses.fields(hyper)
    ]
    facts = {f.name: getattr(entry, f.name) for f in dataclasses.fields(entry) if f.name != "cls"}
    if as_json:
        print(json.dumps(facts | {"hyper": rows}, indent=2, default=str))
        return
    print(methods.page(name) if hasattr(methods, "page") else f"{name}: {entry.summary}")
    plain_table("", list(rows[0]), [[str(value) for value in row.values()] for row in rows])
