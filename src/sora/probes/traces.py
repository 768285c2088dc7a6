"""All numbers of a run over its steps, with an enlarged view of the alarm (Figures 3, 14 and 15)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sora import metrics
from sora.figures import ATTACKS, Axis, Figure, Panel, looks
from sora.probes._base import Probe, Result, register
from sora.probes._records import alarms_of, method_of, title_of
from sora.probes.training import FEW, STEP, accuracies, alarms_text, finding, listed, overlaid, series_of
from sora.runs import LOGS, RunFolder

ZOOM, ZOOM_SHARE = 60, 1 / 6  # steps on either side of the alarm, and at most this share of the run
WINDOW, FALL = 200, 0.5  # how many values are searched for a fall of PertAlign, and how large it must be
WATCHED = ("held-out", "training")  # images whose accuracies a run logs


def rows() -> dict[str, tuple[str, Axis]]:
    """Return the series that are drawn, with their labels and axes; the JSON file has the others as well."""
    share = Axis(low=0, percent=True)
    accuracy = {
        f"{where} {key}": (f"{title_of(key)}\n{where}", share) for key in ATTACKS for where in WATCHED
    }
    own = {name: (name, Axis(scale=metrics.info(name).scale)) for name in metrics.names()}
    others = {"linearity": ("linearity", Axis()), "aae_share": ("AAE\nin batches", share)}
    others |= {"loss": ("loss", Axis(low=0)), "step_size": ("step size", Axis(low=0))}
    return {"pert_align": ("PertAlign", Axis()), **dict(reversed(accuracy.items())), **own, **others}


@register(
    "traces",
    "all numbers a run logged, one metric per row, with an enlarged view of the alarm",
    figures=(14, 15),
)
class Traces(Probe[RunFolder]):
    """Every series of a run as steps and values, and its events."""

    def measure(self, subject: RunFolder) -> Result:
        """Read all series."""
        logs, config = {name: subject.read_log(name) for name in LOGS}, subject.read_config()
        series = series_of(logs["metrics"], logs["monitors"])
        for where in WATCHED:
            evals = [
                row for row in logs["evals"] if (row.get("split") == "training") == (where == "training")
            ]
            series |= {f"{where} {attack}": values for attack, values in accuracies(evals).items()}
        aligned = series.get("pert_align", {})
        return {
            "method": method_of(config),
            "series": {name: listed(points) for name, points in series.items()},
            "events": logs["events"],
            "falls": [list(aligned)[start] for start in falling_windows([*aligned.values()])],
        }

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw a row per metric: all runs in one panel and, after an alarm, its surroundings in a second."""
        whole, window = _panels(results), _around_alarm(results)
        columns = [whole] if window is None else [whole, _panels(results, *window)]
        if window is not None:
            title = f"around the first alarm, steps {window[0]:.0f} to {window[1]:.0f}"
            columns[1][0] = replace(columns[1][0], title=title)
        panels = [panel for row in zip(*columns, strict=True) for panel in row]
        size: Any = {"width": 7.0, "height": 1.25 if len(whole) > 2 else 3.0, "share_x": True}
        return Figure(panels, columns=len(columns), title=_title(results), legend_below="", **size)

    def sentence(self, result: Result) -> str:
        """State how many series there are, and the steps of the alarms."""
        return f"{len(result['series'])} series; {alarms_text(alarms_of(result['events']))}"


@register(
    "collapse", "PertAlign of all runs, and all metrics around the first alarm", of="traces", figures=(3,)
)
class Collapse(Traces):
    """PertAlign of all runs, then every metric around the first alarm, one panel each."""

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Draw all runs in each panel."""
        window = _around_alarm(results)
        first, *others = _panels(results)
        around = others if window is None else _panels(results, *window)
        size: Any = {"width": 4.6, "height": 2.6}
        return Figure([first, *around], columns=3, title=_title(results), legend_below="", **size)


def falling_windows(values: Sequence[float]) -> list[int]:
    """Return the starts of windows in a finished series that end far lower than they begin.

    A window is reported when the mean of its first quarter exceeds the mean of its last by `FALL`; of
    consecutive such windows only the first is.
    """
    width = min(WINDOW, len(values))
    quarter = width // 4
    windows = [values[start : start + width] for start in range(len(values) - width + 1)] if quarter else []
    falling = [sum(window[:quarter]) - sum(window[-quarter:]) >= FALL * quarter for window in windows]
    return [start for start, falls in enumerate(falling) if falls and not (start and falling[start - 1])]


def _title(results: Mapping[str, Result]) -> str:
    """Return what became of the runs, if they are few."""
    texts = []
    for name, result in results.items():
        found = [(key, result["series"].get(f"{where} {key}")) for key in ATTACKS for where in WATCHED]
        accuracy = {key: own for key, own in found if own}
        texts.append(finding(name, accuracy, alarms_of(result["events"])))
    return ". ".join(texts) if len(texts) <= FEW else ""


def _last_step(results: Mapping[str, Result]) -> float:
    series = [own["steps"] for result in results.values() for own in result["series"].values()]
    return max((steps[-1] for steps in series if steps), default=0.0)


def _around_alarm(results: Mapping[str, Result]) -> tuple[float, float] | None:
    """Return the steps around the first alarm of these runs; None without an alarm."""
    first = [step for own in results.values() for step in alarms_of(own["events"])]
    reach = max(1.0, min(ZOOM, ZOOM_SHARE * _last_step(results)))
    return (max(0.0, min(first) - reach), min(first) + reach) if first else None


def _panels(results: Mapping[str, Result], low: float = 0.0, high: float | None = None) -> list[Panel]:
    """Return a panel per series that a run logged and that is not constant; PertAlign's comes first."""
    drawn = looks({name: result.get("method") or "" for name, result in results.items()})
    x, empty = replace(STEP, low=low, high=high or _last_step(results) or None), listed({})
    panels = []
    for key, (label, y) in rows().items():
        runs = {
            name: (drawn[name], result["series"].get(key, empty), alarms_of(result["events"]))
            for name, result in results.items()
        }
        if key == "pert_align" or len({value for _, own, _ in runs.values() for value in own["values"]}) > 1:
            panels.append(replace(overlaid(label, runs, y, width=1.6), x=x))
    return panels
