"""`sora show`: everything about one method, model, data set, attack, metric, probe, recipe or zoo model."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from sora.cli._parse import flag, parse, print_json
from sora.cli._tables import plain_table, text_console
from sora.errors import unknown


@dataclass(frozen=True)
class Flags:
    """Show a method, model, data set, attack, metric, probe, recipe or model of the zoo."""

    name: Sequence[str] = flag(
        (),
        "what to show; `recipe NAME` for a recipe; `zoo:NAME` for a trained model; `attack NAME`, `metric"
        " NAME` or `probe NAME` if a method has the same name",
        metavar="NAME",
        positional=True,
    )
    json: bool = flag(False, "print as JSON")


def run(argv: list[str]) -> int:
    """Find out what the name is and print it."""
    from sora import data, methods, models
    from sora.runs import zoo
    from sora.settings import recipes

    flags = parse(Flags, argv, "show")
    name = " ".join(flags.name)
    kind, rest = flags.name[0], " ".join(flags.name[1:])
    if kind.startswith(zoo.PREFIX):
        show = print if flags.json else _print_page
        show(zoo.card(kind, ".json" if flags.json else ".md"))
    elif kind == "recipe":
        _print(recipes.flattened(rest), flags.json)
    elif kind in ("attack", "metric", "probe"):
        _print(_about_measure(rest, kind), flags.json)
    elif name in methods.names():
        _show_method(name, flags.json)
    elif name in models.names():
        entry = models.info(name)
        facts = {"name": name, "summary": entry.summary, "paper": entry.paper, "options": entry.options}
        _print(facts, flags.json)
    elif name in data.names() and ":" not in name:
        _print(_about_data(name), flags.json)
    else:
        _print(_about_measure(name), flags.json)
    return 0


def _about_measure(name: str, kind: str | None = None) -> dict[str, Any]:
    """Describe an attack, a metric or a probe; with `kind`, that one of several of the same name."""
    from sora import attacks, data, methods, metrics, models, probes
    from sora.runs import zoo
    from sora.settings import recipes

    uses: dict[str, tuple[Any, str]] = {
        "attack": (attacks, f"sora evaluate RUN --attacks {name}"),
        "metric": (metrics, f"sora train --monitor {name}"),
        "probe": (probes, f"sora probe {name} RUN"),
    }
    for each, (registry, use) in uses.items():
        if kind in (None, each) and name in registry.names():
            return {"name": name, each: registry.info(name).summary, "use": use}
    if kind in uses:
        raise unknown(kind, name, uses[kind][0].names())
    sets = [entry for entry in data.names() if ":" not in entry]
    others = [*attacks.names(), *metrics.names(), *probes.names(), *(f"recipe {r}" for r in recipes.names())]
    trained = [f"{zoo.PREFIX}{entry}" for entry in zoo.names()]
    raise unknown("name", name, {*methods.names(), *models.names(), *sets, *others, *trained})


def _about_data(name: str) -> dict[str, Any]:
    """Describe a data set: what is known about it, where it is, and what its recipe normalises with."""
    from sora import data
    from sora.settings import recipes

    [entry] = (entry for entry in data.inventory() if entry.name == name)
    where = entry.where if entry.images else f"damaged: {entry.damaged}" if entry.damaged else "not here"
    recipe = recipes.own_recipe(name)
    normalisation = {key: recipes.flattened(recipe)[key] for key in ("mean", "std")} if recipe else {}
    return data.info(name).details | {"where": where, "normalisation": normalisation}


def _print(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        print(yaml.safe_dump(facts, sort_keys=False, width=200, allow_unicode=True), end="")


def _print_page(markdown: str) -> None:
    """Print a page: laid out on a terminal, as it is in a file or a pipe."""
    from rich.markdown import Markdown

    console = text_console()
    if console.is_terminal:
        console.print(Markdown(markdown))
    else:
        print(markdown)


def _show_method(name: str, as_json: bool) -> None:
    from sora import methods
    from sora._typed import allowed_range

    entry = methods.info(name)
    hyper = entry.cls.hyper_class.build(dict(entry.preset))
    hints = get_type_hints(type(hyper))
    rows: list[dict[str, Any]] = [
        {
            "hyper-parameter": f"{entry.family}.{field.name}",
            "default": getattr(hyper, field.name),
            "allowed": allowed_range(field.metadata) or _choices(hints[field.name]) or "any",
            "what it is": field.metadata["help"],
        }
        for field in dataclasses.fields(hyper)
    ]
    facts = {f.name: getattr(entry, f.name) for f in dataclasses.fields(entry) if f.name != "cls"}
    if as_json:
        print_json(facts | {"hyper": rows})
        return
    _print_page(methods.page(name))
    plain_table("", list(rows[0]), [[str(value) for value in row.values()] for row in rows])


def _choices(hint: Any) -> str:
    kinds = (hint, *get_args(hint))
    named = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    return ", ".join(["true", "false"] if bool in kinds else named)
