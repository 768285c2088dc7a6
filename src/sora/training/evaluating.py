"""Measurements inside a run: the check before the first step, monitors, and evaluations between epochs."""

from __future__ import annotations

import torch
from torch import nn

from sora._passes import frozen
from sora.attacks import Attack, create_all
from sora.errors import UserError
from sora.evaluation import Evaluation, evaluate
from sora.evaluation.examples import as_examples, in_precision_of
from sora.evaluation.validity import inspect_model
from sora.methods import StepOutput
from sora.metrics import measure
from sora.training.keeping import NEEDED, better_weights, candidates, note_evaluation
from sora.training.run import Run

CHECKED = 64  # images that the model is checked on before training
MONITORED = 256  # images per measurement: enough for a curve, cheap enough for every step


def check_model(run: Run) -> None:
    """Raise before the first step if the model could not be trained or evaluated on this data."""
    model, images = run.state.model, run.splits.watched
    with frozen(model):
        examples = in_precision_of(model, as_examples(images))
        x, y = examples.take(torch.arange(min(CHECKED, len(images))), run.device)
        classes = run.dataset.num_classes
        inspection = inspect_model(model, x, y, run.splits.train.labels, run.threat, classes)
    if not inspection.finite_gradients:
        raise UserError(
            "the model's input gradients are NaN or infinite; no attack can be computed with them"
        )
    if inspection.nonnegative:
        run.console.warn("no output of the model is negative: train on logits, not on probabilities")


class Monitors:
    """Measures metrics of the watched images every so many steps: always the same images and noise."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._every = run.settings.monitor_every if run.settings.monitor and run.writes else 0
        if self._every:
            self._x, self._y = run.watched(MONITORED)

    def measure(self, out: StepOutput) -> None:
        """Write the metrics beside the PertAlign of this very step."""
        run = self._run
        if not self._every or run.state.step % self._every:
            return
        with run.meter.paused():
            metrics = measure(run.state.model, self._x, self._y, run.threat, run.settings.monitor)
        line = run.state.place() | {"pert_align": float(out.pert_align)} | metrics
        run.journal.write("monitors", line | {"n": len(self._y), "split": run.splits.watched_name})


def evaluate_epoch(run: Run) -> bool:
    """Evaluate the weights of an epoch; return whether they are the best so far on held-out images."""
    settings, place = run.settings, run.state.place()
    if not settings.eval_every or place["epoch"] % settings.eval_every:
        return False
    with run.meter.paused():
        run.buffers.average()
        found = {name: evaluate_watched(run, model) for name, model in candidates(run).items()}
    weights, evaluation = better_weights(found, settings.keep)
    split, chosen = run.splits.watched_name, {"weights": weights} if len(found) > 1 else {}
    run.journal.write("evals", place | {"split": split} | chosen | evaluation.record())
    numbers = "  ".join(f"{name} {100 * share:.1f} %" for name, share in evaluation.accuracy.items())
    which = "held out" if split == "holdout" else "training images"
    which += f", {weights} weights" if chosen else ""
    run.console.say(f"epoch {place['epoch']}/{settings.epochs}  {which} (n={evaluation.n})  {numbers}")
    for text in evaluation.void.values():
        run.console.warn(text)
    if evaluation.verdict == "overfitted" and not run.state.guard.alarmed:
        # PertAlign can stay high where eps is more than the model can be robust to.
        run.console.warn(f"epoch {place['epoch']}: overfitted: the model withstands FGSM but not PGD-10")
    # Images that are trained on cannot choose weights.
    counts = split == "holdout" and not evaluation.void
    is_best = counts and note_evaluation(run.state, settings.keep, evaluation, chosen)
    for hook in run.hooks:
        hook.on_evaluation(run, evaluation)
    return is_best


def evaluate_watched(run: Run, model: nn.Module) -> Evaluation:
    """Evaluate weights of this step on the watched images."""
    with run.console.paused(), run.signals.stopping_at_once(run.state.step):
        return evaluate(
            model,
            run.splits.watched,
            run.threat,
            attacks_while_training(run.settings.attacks, run.settings.keep),
            device=run.device,
            progress=run.console.is_shown,
        )


def attacks_while_training(names: tuple[str, ...], keep: str = "last") -> list[Attack]:
    """Return the attacks of evaluations between epochs: PGD-10 in place of those that take hours.

    Where weights are chosen by these evaluations, those that the choice needs are added, and PGD with more
    steps waits for the end as well: every epoch has two kinds of weights to evaluate if they are averaged.
    """
    quick = create_all(["pgd10" if attack.slow else attack for attack in create_all(names)])
    if keep == "last":
        return quick
    needed = create_all(NEEDED)
    most = max(attack.passes for attack in needed)
    return create_all([*(attack for attack in quick if attack.passes <= most), *needed])
