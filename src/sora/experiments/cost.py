"""What runs cost: the passes of a step, and the time of a grid from a few steps measured here."""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple

import torch

from sora import data, methods, models
from sora._devices import check_count, pick_device, wait_for
from sora.attacks import Attack, create_all
from sora.data.splits import default_holdout
from sora.errors import RunError, UserError
from sora.evaluation.progress import progress_bar
from sora.experiments import paper
from sora.experiments.grid import default_jobs
from sora.methods import Bench, measure
from sora.runs import RunFolder
from sora.settings import Resolved, Settings, is_custom
from sora.training.evaluating import attacks_while_training

IMAGES = 16  # of a measured step; its time is scaled to the number of images
ROUNDS = 2


class Passes(NamedTuple):
    """Forward and backward passes over one batch in one step, as text."""

    forwards: str
    backwards: str


UNKNOWN = Passes("-", "-")


def passes_of_run(folder: RunFolder, *summaries: Mapping[str, Any]) -> Passes:
    """Return the passes of runs that share the settings in a folder, of which these are the summaries.

    They are unknown if the settings cannot be read or PGD replaced the method at times. The summary of a run
    that has not finished is empty.
    """
    events = [event for summary in summaries for event in summary.get("co", {}).get("events", ())]
    if any("pgd_batches" in (event.get("changed") or {}) for event in events):
        return UNKNOWN
    try:
        return passes_of(folder.read_settings())
    except (RunError, UserError):  # also for a method that is not installed here
        return UNKNOWN


def passes_of(settings: Settings) -> Passes:
    """Return the passes that the registry states for a run's method and its options.

    A formula such as `steps + 1` is computed. Otherwise the registry states them for the usual values of the
    options that change them, and they are unknown for others.
    """
    entry, hyper = methods.info(settings.method), settings.hyper()
    formula, usual = methods.info(entry.family), entry.cls.hyper_class.build(dict(entry.preset))
    values = {field.name: getattr(hyper, field.name) for field in fields(hyper)}
    if any(re.search(rf"\b{name}\b", formula.forwards) for name in values):
        forwards, backwards = (_filled(text, values) for text in (formula.forwards, formula.backwards))
        parts = forwards.split(" + ")
        return Passes(str(sum(map(int, parts))) if all(map(str.isdigit, parts)) else forwards, backwards)
    if any(values[name] != getattr(usual, name) for name in entry.pass_options):
        return UNKNOWN
    return Passes(entry.forwards, entry.backwards)


def _filled(formula: str, values: dict[str, Any]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda found: str(values.get(found[0], found[0])), formula)


class DatasetSize(NamedTuple):
    """The size of a data set."""

    shape: tuple[int, int, int]
    classes: int
    train: int
    test: int


def dataset_size(dataset: str, data_dir: str | None = None) -> DatasetSize:
    """Return the size of a data set on this machine."""
    found = data.load(dataset, data_dir)
    shape = (found.in_channels, *found.image_size)
    return DatasetSize(shape, found.num_classes, len(found.train), len(found.test))


def known_size(dataset: str, data_dir: str | None = None) -> DatasetSize:
    """Return the size of a data set, from the paper's overview where its images are not on this machine."""
    try:
        return dataset_size(dataset, data_dir)
    except (UserError, RunError):
        values = paper.numbers(paper.load("datasets")).get(dataset)
        if values is None:
            raise
    channels, height, width = map(int, values["shape"].text.split("x"))
    return DatasetSize(
        (channels, height, width), *(int(values[key].text) for key in ("classes", "train", "test"))
    )


def bench_of(
    model: str, size: DatasetSize, width: int | None = None, options: Mapping[str, Any] | None = None
) -> Bench:
    """Describe a model at the shape of a data set, for measurements."""
    channels, pixels, _ = size.shape
    sizes = {"in_channels": channels, "image_size": pixels, "width": width, **(options or {})}
    return Bench(lambda: models.create(model, size.classes, **sizes), size.shape, size.classes)


@dataclass
class Estimate:
    """Hours of the runs that are not finished, and what was measured for them."""

    jobs: int
    threads: int
    train_hours: dict[str, float] = field(default_factory=dict)  # by run
    attack_hours: dict[str, float] = field(default_factory=dict)
    measured: list[str] = field(default_factory=list)
    finished: int = 0

    @property
    def wall_hours(self) -> float:
        """With the runs side by side: not less than the longest of them takes."""
        hours = [self.train_hours[name] + self.attack_hours[name] for name in self.train_hours]
        return max(sum(hours) / self.jobs, *hours, 0.0)


def estimate(runs: Sequence[Resolved], jobs: int = 0, progress: bool = False) -> Estimate:
    """Time a step of one method per distinct cost, and one pass for the attacks."""
    check_count("--jobs", jobs, 0)
    first = runs[0].settings
    jobs = min(len(runs), jobs or default_jobs(len(runs), first.device))
    threads = first.threads or max(1, (os.cpu_count() or 1) // jobs)
    result, before = Estimate(jobs, threads), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        timer = _Timer(result.measured)
        with progress_bar("timing", len(runs), progress) as advance:
            for resolved in runs:
                advance()
                settings, folder = resolved.settings, RunFolder(resolved.settings.folder())
                if folder.is_finished():
                    result.finished += 1
                    continue
                size = timer.size(settings.dataset, settings.data_dir)
                images = min(settings.limit_train or size.train, size.train)
                entry, hyper = methods.info(settings.method), settings.method_options()
                cost = (entry.forwards, entry.backwards, hyper.get("steps"), hyper.get("replays"))
                seconds = timer.once(settings, f"a step of {settings.method}", cost, _seconds_of_step)
                result.train_hours[folder.name] = seconds * images * settings.epochs / 3600
                passes = sum(attack_passes(attack, size.classes) for attack in create_all(settings.attacks))
                tested = min(settings.limit_test or size.test, size.test)
                passes = passes * tested + passes_while_training(settings, images, size.classes)
                seconds = timer.once(settings, "a pass of an attack", (), _seconds_of_pass)
                result.attack_hours[folder.name] = seconds * passes / 3600
    finally:
        torch.set_num_threads(before)
    return result


def attack_passes(attack: Attack, classes: int) -> int:
    """Return the passes for an image that withstands everything; AutoAttack's parts are added up."""
    own = attack.for_classes(classes)
    return sum(part.passes for part in own.parts) or own.passes


def passes_while_training(settings: Settings, images: int, classes: int) -> int:
    """Return the passes of all evaluations between epochs, over all watched images."""
    if not settings.eval_every:
        return 0
    watched = settings.holdout or default_holdout(images)
    attacks = attacks_while_training(settings.attacks, settings.keep)
    passes = sum(attack_passes(attack, classes) for attack in attacks)
    kinds = 2 if settings.ema and settings.keep != "last" else 1  # raw and averaged weights
    return passes * watched * kinds * (settings.epochs // settings.eval_every)


class _Timer:
    """Seconds per image, measured once for each model and number of passes."""

    def __init__(self, measured: list[str]) -> None:
        self._measured, self._seconds = measured, dict[tuple[object, ...], float]()
        self.size = cache(known_size)

    def once(
        self, settings: Settings, what: str, cost: tuple[object, ...], seconds_of: Callable[..., float]
    ) -> float:
        """Return the seconds per image of `what`, whose time depends on the model and on its `cost`."""
        options = settings.model_options()
        key = (cost, settings.dataset, settings.model, settings.width, *sorted(options.items()))
        if key not in self._seconds:
            size = self.size(settings.dataset, settings.data_dir)
            known = {} if is_custom(settings.model) else options
            bench = bench_of(settings.model, size, settings.width, known)
            self._seconds[key] = seconds = seconds_of(settings, bench) / IMAGES
            self._measured.append(f"{what} on {settings.model}: {1000 * seconds:.2f} ms per image")
        return self._seconds[key]


def _seconds_of_step(settings: Settings, bench: Bench) -> float:
    """Time all weight updates on a batch."""
    device, hyper = str(pick_device(settings.device)), settings.method_options()
    cost = measure(settings.method, device=device, batch_size=IMAGES, rounds=ROUNDS, bench=bench, hyper=hyper)
    return cost.seconds


def _seconds_of_pass(settings: Settings, bench: Bench) -> float:
    """Time a forward pass and the gradient with respect to the input."""
    device, seconds = pick_device(settings.device), []
    model = bench.model().to(device).eval().requires_grad_(False)
    x = torch.rand(IMAGES, *bench.shape, device=device, requires_grad=True)
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        torch.autograd.grad(model(x).sum(), x)
        wait_for(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds)
