"""The figures of the paper from runs, each by its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sora import data, probes
from sora.errors import UserError, unknown
from sora.experiments import paper
from sora.figures import BLUE, PALETTE, Axis, Bars, Figure, Item, Line, Panel
from sora.probes import Result, SubjectOptions, traces
from sora.probes._plane import SecondAxis
from sora.report import comparison_figures as across
from sora.report.comparison import STAR, Setting, colours, robust_attack, settings_of
from sora.report.measuring import at_steps, moments, result_of
from sora.report.reading import Missing, RunRecord, read_runs
from sora.report.run_figures import STEP, alarm_rules, series, step_size
from sora.report.sentences import title_of

NAMED = 20  # classes whose names fit under the bars


@dataclass(frozen=True)
class Request:
    """What a figure is made from.

    Attributes:
        names: Run folders or folders of runs; for `classes`, data sets.
        steps: Snapshots, for `boundary`.
        second: Second axis of `landscape`.
        paper: Draw the paper's own numbers, for `overview`.
        options: Which weights and images, for figures that measure a model.
        left_out: Filled while the figure is made: the runs that it does not show, and why.
    """

    names: Sequence[str] = ()
    steps: Sequence[int] = ()
    second: SecondAxis = "random"
    paper: bool = False
    options: SubjectOptions = field(default_factory=SubjectOptions)
    left_out: list[str] = field(default_factory=list)

    def runs(self) -> list[RunRecord]:
        """The runs that are named."""
        if not self.names:
            raise UserError("name at least one run folder or folder of runs")
        return read_runs(self.names)


@dataclass(frozen=True)
class Entry:
    """A figure that can be drawn: its numbers in the paper, what it shows, and how it is made."""

    numbers: tuple[int, ...]
    summary: str
    make: Callable[[Request], Figure]
    measures: bool = False
    """Whether it measures models, and so depends on `Request.options`."""


def _boundary(request: Request) -> Figure:
    [run, *others] = request.runs()
    if others:
        raise UserError("boundary shows one run at several steps; name one run")
    steps = request.steps or moments(run.folder)
    results = at_steps("boundary", run.folder, steps, request.options)
    figure = probes.create("boundary", panels=1).figure(results)
    return dataclasses.replace(figure, columns=len(results))


def _probe(name: str) -> Callable[[Request], Figure]:
    def make(request: Request) -> Figure:
        return probes.create(name).figure(_results(name, request))

    return make


def _results(name: str, request: Request, **own: Any) -> dict[str, Result]:
    return {run.label: result_of(name, run.folder, request.options, **own) for run in request.runs()}


def _eps_overlay(request: Request) -> Figure:
    items: list[Item] = []
    for number, (name, result) in enumerate(_results("eps-curve", request).items()):
        eps = 255 * result["threat"]["eps"]
        x = [multiple * eps for multiple in result["multiples"]]
        colour = PALETTE[number % len(PALETTE)]
        items.append(Line(x, result["fgsm"], f"{name}, trained at {eps:.3g}/255", colour))
    x_axis = Axis("step of FGSM (1/255)")
    panel = Panel(items, "FGSM accuracy over the step", x_axis, Axis("accuracy", 0, 1.02, percent=True))
    return Figure([panel], width=7.5, height=4.5)


def _landscape(request: Request) -> Figure:
    second = request.second
    results = _results("landscape", request, variant="pgd" if second == "pgd" else "", second=second)
    return probes.create("landscape").figure(results)


def _collapse(request: Request) -> Figure:
    runs = request.runs()
    lines: list[Item] = []
    around: list[Panel] = []
    for run, colour in zip(runs, _run_colours(runs), strict=True):
        name = f"PertAlign of {run.label}"
        x, y = series(run, "pert_align")
        if x:
            lines.append(Line(x, y, name, colour))
        lines += alarm_rules(run)
        result = probes.create("traces").measure(run.folder)
        if traces.alarms(result):
            panel = traces.around_alarm(run.label, result)
            items = [_renamed(item, "pert_align", name, colour) for item in panel.items]
            around.append(dataclasses.replace(panel, items=items))
    first = Panel(lines, "PertAlign while training", STEP, Axis("PertAlign"))
    return Figure([first, *around], columns=2, width=7.0, height=4.6, legend_below="")


def _renamed(item: Item, before: str, name: str, colour: str) -> Item:
    """One of a panel's curves under the name and in the colour that it has in another panel."""
    if isinstance(item, Line) and item.name == before:
        return dataclasses.replace(item, name=name, colour=colour)
    return item


def _run_colours(runs: Sequence[RunRecord]) -> list[str]:
    """SORA's runs have its colour, the others one of their own each."""
    others = iter(PALETTE[1 + number % (len(PALETTE) - 1)] for number in range(len(runs)))
    methods = [run.config.get("threat", {}).get("method") for run in runs]
    return [BLUE if method == STAR else next(others) for method in methods]


def _traces(request: Request) -> Figure:
    probe = probes.create("traces")
    return probe.figure({run.label: probe.measure(run.folder) for run in request.runs()})


def _step_size(request: Request) -> Figure:
    panels = [dataclasses.replace(step_size(run), title=_described(run)) for run in request.runs()]
    present = [panel for panel in panels if panel.items]
    if not present:
        raise UserError("none of these runs has logged a step size")
    return Figure(present, columns=2)


def _described(run: RunRecord) -> str:
    summary = run.summary
    return f"{run.label}: {summary['dataset']}, {summary['model']}" if summary else run.label


def _compared(request: Request) -> tuple[list[Setting], str]:
    """The finished runs by setting, and the attack that stands for robust accuracy."""
    missing: list[Missing] = []
    runs = request.runs()
    settings = settings_of(runs, missing)
    if not settings:
        raise UserError("; ".join(["no finished run among these", *(each.what for each in missing)]))
    attack = robust_attack(settings)
    reasons = [(run, _not_comparable(run, attack)) for run in runs]
    request.left_out.extend(each.what for each in missing)
    request.left_out.extend(f"{run.label}: {reason}" for run, reason in reasons if reason)
    return settings, attack


def _not_comparable(run: RunRecord, attack: str) -> str:
    """Why a run has no place among others; empty if it has one."""
    if not run.summary:
        return "its summary cannot be read" if run.folder.is_finished() else "it is not finished"
    measured = (run.summary.get("accuracy") or {}).get(attack)
    return f"no accuracy under {title_of(attack)}" if measured is None else ""


def _overview(request: Request) -> Figure:
    if request.paper:
        robust, clean = (_of_paper(metric) for metric in ("pgd10", "clean"))
        clean = {title: clean[title] for title in robust}  # the same columns in both panels
        names = list(dict.fromkeys(name for own in robust.values() for name in own))
        cycle = {name: PALETTE[1 + number % (len(PALETTE) - 1)] for number, name in enumerate(names)}
        figure = across.overview(robust, clean, cycle | {STAR: BLUE}, "PGD-10")
        return dataclasses.replace(figure, width=17.0, height=5.2, title="The paper's own numbers")
    settings, attack = _compared(request)
    robust, clean = (across.means(settings, name) for name in (attack, "clean"))
    return across.overview(robust, clean, colours(settings), title_of(attack))


def _of_paper(metric: str) -> dict[str, dict[str, float]]:
    grid = paper.load("main")
    found: dict[str, dict[str, float]] = {}
    for dataset, model in paper.pairs(grid):
        rows = paper.numbers(grid, dataset, model)
        means = {row: values[metric].mean for row, values in rows.items() if metric in values}
        found[f"{dataset}\n{model}"] = {row: mean / 100 for row, mean in means.items() if mean is not None}
    return {title: own for title, own in found.items() if own}


def _cost(request: Request) -> Figure:
    settings, attack = _compared(request)
    return across.against_cost(settings, attack, colours(settings))


def _classes(request: Request) -> Figure:
    root = request.options.data_dir
    known = data.names()  # the inventory also has packed copies of the user's images, which have no name
    here = [line.name for line in data.inventory(root) if line.images and line.name in known]
    names = request.names or here
    panels = []
    for name in names:
        dataset = data.load(name, root)
        counts = dataset.train.labels.bincount(minlength=dataset.num_classes).tolist()
        few = len(counts) <= NAMED
        labels = [text[:16] for text in dataset.classes] if few else [str(k) for k in range(len(counts))]
        values = counts if few else sorted(counts, reverse=True)
        x = Axis("" if few else "classes, largest first", names={} if few else {0.0: "0"})
        title = f"{dataset.name}: {dataset.num_classes} classes"
        panels.append(Panel([Bars(labels, values)], title, x, Axis("training images", low=0)))
    return Figure(panels, columns=3)


FIGURES: dict[str, Entry] = {
    "boundary": Entry((1,), "predicted classes around one image at three steps of a run", _boundary, True),
    "eps-curve": Entry((2, 11), "accuracy under FGSM and PGD-10 over the radius", _probe("eps-curve"), True),
    "collapse": Entry((3,), "PertAlign of all runs, and all metrics around the first alarm", _collapse),
    "step-size": Entry((5, 12), "the attack's step size in 1/255, with its cap", _step_size),
    "overview": Entry((6,), "accuracy relative to the best method of each setting", _overview),
    "cost": Entry((7, 16), "robust accuracy over training time and memory", _cost),
    "classes": Entry((8,), "images per class of the data sets at hand", _classes),
    "samples": Entry((9,), "test images, clean and attacked, with the perturbation", _probe("samples"), True),
    "eps-overlay": Entry((10,), "FGSM accuracy of several runs over one absolute axis", _eps_overlay, True),
    "landscape": Entry((13,), "the loss over two directions", _landscape, True),
    "traces": Entry((14, 15), "every metric of a run, with an enlarged view of the alarm", _traces),
}


def make(name: str, request: Request) -> Figure:
    """The figure of that name."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return FIGURES[name].make(request)
