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
    """Show a method, a model, or `recipe NAME`."""

    name: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(help="NAME, or recipe NAME")] = ()
    json: Annotated[bool, tyro.conf.arg(help="print as JSON")] = False


def run(argv: list[str]) -> int:
    """Find out what the name is and print it."""
    from sora import methods, models
    from sora.training.config import read_recipe, recipe_names

    flags = parse(Flags, argv, "show")
    words = list(flags.name)
    if words[:1] == ["recipe"]:
        table = read_recipe(words[1] if len(words) > 1 else "")
        print(json.dumps(table, indent=2) if flags.json else yaml.safe_dump(table, sort_keys=False), end="")
        return 0
    name = " ".join(words)
    if name in methods.names():
        _show_method(name, flags.json)
    elif name in models.names():
        entry = models.entry(name)
        table = {"name": name, "summary": entry.summary, "paper": entry.paper, "options": entry.options}
        print(json.dumps(table, indent=2) if flags.json else yaml.safe_dump(table, sort_keys=False), end="")
    else:
        recipes = [f"recipe {recipe}" for recipe in recipe_names()]
        raise unknown("name", name, [*methods.names(), *models.names(), *recipes])
    return 0


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
