"""Finished runs side by side: relative overview, accuracy against cost, curves, spread over seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sora.figures import Axis, Figure, Item, Line, Look, Panel, Points, looks
from sora.probes._base import Probe, Result, register
from sora.probes._records import Setting, is_known, title_of
from sora.probes.training import STEP, Series, accuracies, curve, series_of, watched_images

STAR = "sora"  # the row that is drawn larger and on top
COSTS = {"train_seconds": "training time (s)", "peak_memory_mb": "peak memory (MB)"}


def _looks(groups: Iterable[Mapping[str, str]]) -> dict[str, Look]:
    """Return the looks of the rows of some settings, by name."""
    return looks({name: method for group in groups for name, method in group.items()})


def _best(values: Mapping[str, float], attack: str) -> str:
    if not values:
        return f"no accuracy under {title_of(attack)}"
    name = max(values, key=lambda name: values[name])
    return f"highest accuracy under {title_of(attack)}: {name}, {100 * values[name]:.1f} %"


@register(
    "overview", "accuracy relative to the best method of each setting", reads="comparison", figures=(6,)
)
@dataclass(frozen=True)
class Overview(Probe[Setting]):
    """Every accuracy divided by the highest of its setting, robust and clean."""

    paper: bool = False  # the settings are those of the paper, with its own numbers

    def measure(self, subject: Setting) -> Result:
        """Return the mean accuracies of all rows, robust and clean."""
        about = {"dataset": subject.dataset, "model": subject.model, "radius": subject.radius}
        means = {"robust": subject.means(subject.attack), "clean": subject.means("clean")}
        return about | {"attack": subject.attack, "methods": subject.methods} | means

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw a panel of robust and one of clean accuracies, a column per setting."""
        same = len({result["radius"] for result in results.values()}) == 1
        columns = {
            f"{own['dataset']}\n{own['model']}" + ("" if same else f"\neps {own['radius']}"): own
            for own in results.values()
        }
        attack = title_of(next(iter(results.values()))["attack"])
        titles = {"robust": f"Relative accuracy under {attack}", "clean": "Relative clean accuracy"}
        by_name = _looks(own["methods"] for own in results.values())
        panels = [
            _relative(title, {column: own[key] for column, own in columns.items()}, by_name)
            for key, title in titles.items()
        ]
        text = "Each accuracy divided by the highest of its column: 100 % is the best method of a setting."
        size: Any = {"width": 17.0, "height": 5.2} if self.paper else {"width": 9.5, "height": 3.9}
        title = "The paper's own numbers" if self.paper else ""
        return Figure(panels, columns=1, title=title, legend_below="", caption=text, **size)

    def sentence(self, result: Result) -> str:
        """Name the best method."""
        return _best(result["robust"], result["attack"])


def _relative(title: str, columns: Mapping[str, Mapping[str, float]], by_name: Mapping[str, Look]) -> Panel:
    best = [max(own.values(), default=0.0) for own in columns.values()]
    names = list(dict.fromkeys(name for own in columns.values() for name in own))
    items: list[Item] = []
    # Side by side within a column, so that equal values do not hide each other; SORA is drawn on top.
    for number, name in enumerate(sorted(names, key=lambda name: name == STAR)):
        shares = [
            own[name] / top if name in own and top else None
            for own, top in zip(columns.values(), best, strict=True)
        ]
        beside = 0.6 * ((number + 0.5) / len(names) - 0.5)
        places, size = [place + beside for place in range(len(shares))], 12 if name == STAR else 6.5
        items.append(Points(places, shares, name, by_name[name].colour, by_name[name].marker, size))
    ticks = {float(place): text for place, text in enumerate(columns)}
    width = Axis("", -0.5, len(columns) - 0.5, names=ticks)
    return Panel(items, title, width, Axis("share of the best", -0.03, 1.06, percent=True))


@register("cost", "robust accuracy over training time and memory", reads="comparison", figures=(7, 16))
class Cost(Probe[Setting]):
    """Robust accuracy over training time and over memory, for each setting."""

    def measure(self, subject: Setting) -> Result:
        """Return accuracy and costs of every row that has them."""
        rows: dict[str, Result] = {}
        for name, mean in subject.means(subject.attack).items():
            [entry] = [row.entry for row in subject.rows if row.name == name]
            std = entry["accuracy"][subject.attack]["std"]
            costs = {key: entry[key]["mean"] for key in COSTS if is_known(entry[key]["mean"])}
            rows[name] = {"accuracy": mean, "std": std if is_known(std) else 0.0, **costs}
        return {"attack": subject.attack, "methods": subject.methods, "rows": rows}

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw two panels per setting."""
        by_name = _looks(own["methods"] for own in results.values())
        panels = [
            _cost_panel(setting if len(results) > 1 else "", result, key, by_name)
            for setting, result in results.items()
            for key in COSTS
        ]
        return _shown(panels, "The star marks SORA; bars show the deviation over seeds.")

    def sentence(self, result: Result) -> str:
        """Name the best method."""
        return _best({name: row["accuracy"] for name, row in result["rows"].items()}, result["attack"])


def _cost_panel(setting: str, result: Result, key: str, by_name: Mapping[str, Look]) -> Panel:
    items: list[Item] = []
    attack, right, top = title_of(result["attack"]), 0.0, 0.0
    for name, row in result["rows"].items():
        if key not in row:
            continue
        right, top = max(right, row[key]), max(top, row["accuracy"] + row["std"])
        look: dict[str, Any] = {"marker": by_name[name].marker, "size": 13 if name == STAR else 8}
        place = [row[key]], [row["accuracy"]]
        items.append(Points(*place, name, by_name[name].colour, spread=[row["std"]], **look))
    best = _best({name: row["accuracy"] for name, row in result["rows"].items()}, result["attack"])
    title = f"{best[:1].upper()}{best[1:]}" if key == "train_seconds" else "The same over memory"
    y = Axis(f"accuracy under {attack}", 0, 1.12 * top or None, percent=True)
    return Panel(items, _titled(title, setting), Axis(COSTS[key], 0, 1.12 * right or None), y)


def _titled(title: str, setting: str) -> str:
    return "; ".join(filter(None, (title, setting)))


def overlay(settings: Sequence[Setting]) -> Figure:
    """Draw robust accuracy and PertAlign of all runs over their steps, with a colour per row."""
    panels: list[Panel] = []
    by_name = _looks(setting.methods for setting in settings)
    for setting in settings:
        about, attack = setting.name if len(settings) > 1 else "", title_of(setting.attack)
        logs = [(row.name, run.logs) for row in setting.rows for run in row.runs]
        where = watched_images(line for _, own in logs for line in own["evals"])
        robust = [(name, accuracies(own["evals"]).get(setting.attack, {})) for name, own in logs]
        align = [(name, series_of(own["metrics"]).get("pert_align", {})) for name, own in logs]
        y = Axis(f"accuracy under {attack}", 0, None, percent=True)
        title = _titled(f"Accuracy under {attack} on {where}", about)
        panels.append(Panel(_curves(robust, by_name), title, STEP, y))
        panels.append(Panel(_curves(align, by_name), _titled("PertAlign", about), STEP, Axis("PertAlign")))
    return _shown(panels, "One line per run, one colour per method.")


def _shown(panels: Sequence[Panel], caption: str) -> Figure:
    return Figure([panel for panel in panels if panel.items], columns=2, caption=caption)


def _curves(curves: Sequence[tuple[str, Series]], by_name: Mapping[str, Look]) -> list[Item]:
    shown = [(name, values) for name, values in curves if values]
    first = dict(reversed(shown))  # has the entry in the legend
    return [
        curve(values, name, look.colour, style=look.style, width=1.4, in_legend=values is first[name])
        for name, values in shown
        for look in (by_name[name],)
    ]


def seeds(settings: Sequence[Setting]) -> Figure:
    """Draw the robust accuracy of every seed, and the mean of each row."""
    by_name = _looks(setting.methods for setting in settings)
    panels = [_seed_panel(setting, by_name, len(settings) > 1) for setting in settings]
    return _shown(panels, "One circle per seed; the bar is the mean.")


def _seed_panel(setting: Setting, by_name: Mapping[str, Look], several: bool) -> Panel:
    rows = [row for row in setting.rows if setting.attack in row.entry["accuracy"]]
    items: list[Item] = []
    for place, row in enumerate(rows):
        accuracy, colour = row.entry["accuracy"][setting.attack], by_name[row.name].colour
        values = [value for value in accuracy["values"] if value is not None]
        if values:
            items.append(Line([place - 0.25, place + 0.25], [accuracy["mean"]] * 2, "", colour, width=2.5))
            items.append(Points([place] * len(values), values, row.name, colour, hollow=True))
    names = {float(place): row.name for place, row in enumerate(rows)}
    text = f"accuracy under {title_of(setting.attack)}"
    x, y = Axis("", -0.6, len(rows) - 0.4, names=names), Axis(text, 0, None, percent=True)
    title = _titled(f"A{text[1:]}", setting.name if several else "")
    return Panel(items, title, x, y, legend=False)
