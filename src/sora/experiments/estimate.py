"""How long the runs of a grid would take, from a few steps measured here."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from sora import methods
from sora._devices import check_count, pick_device
from sora.attacks import Attack, create_all
from sora.data.splits import default_holdout
from sora.experiments.facts import Facts, bench_of, facts_of
from sora.experiments.grid import default_jobs
from sora.methods import Bench, measure
from sora.runs import RunFolder
from sora.settings import Resolved, Settings, is_custom
from sora.training.evaluating import attacks_while_training

IMAGES = 16  # of a measured step; its time is scaled to the number of images
ROUNDS = 2


@dataclass
class Estimate:
    """Hours of the runs that are not finished, and what was measured for them."""

    jobs: int
    threads: int
    train_hours: dict[str, float] = field(default_factory=dict)
    """By run."""
    attack_hours: dict[str, float] = field(default_factory=dict)
    measured: list[str] = field(default_factory=list)
    finished: int = 0

    @property
    def wall_hours(self) -> float:
        """With the runs side by side: not less than the longest of them takes."""
        hours = [self.train_hours[name] + self.attack_hours[name] for name in self.train_hours]
        return max(sum(hours) / self.jobs, *hours, 0.0)


def estimate(runs: Sequence[Resolved], jobs: int = 0) -> Estimate:
    """Time a step of one method per distinct cost, and one pass for the attacks."""
    check_count("--jobs", jobs, 0)
    first = runs[0].settings
    jobs = min(len(runs), jobs or default_jobs(len(runs), first.device))
    threads = first.threads or max(1, (os.cpu_count() or 1) // jobs)
    result, before = Estimate(jobs, threads), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        timer = _Timer(result)
        for resolved in runs:
            settings, folder = resolved.settings, RunFolder(resolved.settings.folder())
            if folder.is_finished():
                result.finished += 1
                continue
            facts = timer.facts(settings)
            images = min(settings.limit_train or facts.train, facts.train)
            seconds = timer.per_image(settings) * images * settings.epochs
            result.train_hours[folder.name] = seconds / 3600
            passes = sum(passes_of(attack, facts.classes) for attack in create_all(settings.attacks))
            tested = min(settings.limit_test or facts.test, facts.test)
            passes = passes * tested + passes_while_training(settings, images, facts.classes)
            result.attack_hours[folder.name] = timer.per_pass(settings) * passes / 3600
    finally:
        torch.set_num_threads(before)
    return result


def passes_of(attack: Attack, classes: int) -> int:
    """Passes per image if it withstands everything; AutoAttack's parts each have theirs."""
    own = attack.for_classes(classes)
    return sum(part.passes for part in own.parts) or own.passes


def passes_while_training(settings: Settings, images: int, classes: int) -> int:
    """Passes of all evaluations between epochs, over all watched images."""
    if not settings.eval_every:
        return 0
    watched = settings.holdout or default_holdout(images)
    attacks = attacks_while_training(settings.attacks, settings.keep)
    passes = sum(passes_of(attack, classes) for attack in attacks)
    kinds = 2 if settings.ema and settings.keep != "last" else 1  # raw and averaged weights
    return passes * watched * kinds * (settings.epochs // settings.eval_every)


class _Timer:
    """Seconds per image, measured once for each network and number of passes."""

    def __init__(self, result: Estimate) -> None:
        self._result = result
        self._facts: dict[str, Facts] = {}
        self._steps: dict[tuple[object, ...], float] = {}
        self._passes: dict[tuple[object, ...], float] = {}

    def facts(self, settings: Settings) -> Facts:
        """The size of the data set."""
        if settings.dataset not in self._facts:
            self._facts[settings.dataset] = facts_of(settings.dataset, settings.data_dir)
        return self._facts[settings.dataset]

    def per_image(self, settings: Settings) -> float:
        """Of one epoch: all weight updates on a batch, per image."""
        entry = methods.info(settings.method)
        hyper = settings.method_options()
        key = (entry.forwards, entry.backwards, hyper.get("steps"), hyper.get("replays"), *_network(settings))
        if key not in self._steps:
            cost = measure(
                settings.method,
                device=str(pick_device(settings.device)),
                batch_size=IMAGES,
                rounds=ROUNDS,
                bench=self._bench(settings),
                hyper=hyper,
            )
            self._steps[key] = seconds = cost.seconds / IMAGES
            self._result.measured.append(
                f"a step of {settings.method} on {settings.model}: {1000 * seconds:.2f} ms per image"
            )
        return self._steps[key]

    def per_pass(self, settings: Settings) -> float:
        """A forward pass and the gradient with respect to the input, per image."""
        key = _network(settings)
        if key not in self._passes:
            bench, device = self._bench(settings), pick_device(settings.device)
            model = bench.network().to(device).eval().requires_grad_(False)
            x = torch.rand(IMAGES, *bench.shape, device=device, requires_grad=True)
            seconds = min(_timed_pass(model, x) for _ in range(ROUNDS + 1)) / IMAGES
            self._passes[key] = seconds
            self._result.measured.append(
                f"a pass of an attack on {settings.model}: {1000 * seconds:.2f} ms per image"
            )
        return self._passes[key]

    def _bench(self, settings: Settings) -> Bench:
        options = {} if is_custom(settings.model) else settings.model_options()
        return bench_of(settings.model, self.facts(settings), settings.width, options)


def _network(settings: Settings) -> tuple[object, ...]:
    options = tuple(sorted(settings.model_options().items()))
    return settings.dataset, settings.model, settings.width, options


def _timed_pass(model: torch.nn.Module, x: torch.Tensor) -> float:
    began = time.perf_counter()
    torch.autograd.grad(model(x).sum(), x)
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
    return time.perf_counter() - began
