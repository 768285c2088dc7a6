"""Measurements inside a run: the check before the first step, monitors, evaluations between epochs.

The evaluations choose which weights become the final model (`--keep`): the last, or those of the best epoch
on held-out images. `best-robust` is the epoch with the highest PGD-10 accuracy, `best` the one with the
highest mean of clean and PGD-10 accuracy. FGSM accuracy plays no part: catastrophic overfitting makes it
rise. The interval of the chosen epoch's PGD-10 accuracy is stored beside it, and whether the last epoch lies
within it. If weights are averaged, each epoch's raw and averaged weights are compared: early in a run the
average is near chance.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sora._passes import frozen
from sora.attacks import Attack, create_all
from sora.data.augment import resized
from sora.errors import UserError, short
from sora.evaluation import Evaluation, evaluate, wilson
from sora.evaluation.examples import as_examples, in_precision_of
from sora.evaluation.validity import inspect_model
from sora.methods import StepOutput
from sora.metrics import measure
from sora.training.run import Run
from sora.training.saving import read_checkpoint
from sora.training.state import State

CHECKED = 64  # images that the model is checked on before training
MONITORED = 256  # images per measurement: enough for a curve, cheap enough for every step
NEEDED = ("clean", "pgd10")  # attacks that the choice needs
RAW, AVERAGED = "raw", "averaged"


def check_model(run: Run) -> None:
    """Raise before the first step if the model could not be trained or evaluated on this data."""
    model, images = run.state.model, run.splits.watched
    with frozen(model), run.task.reading(model):
        examples = in_precision_of(model, as_examples(images))
        x, y = examples.take(torch.arange(min(CHECKED, len(images))), run.device)
        classes = run.dataset.expected_classes
        inspection = inspect_model(model, x, y, run.splits.train.labels, run.threat, classes, run.task)
        for size in set(run.settings.image_sizes):
            try:
                model(resized(x, size))
            except (RuntimeError, IndexError, ValueError) as error:
                raise UserError(
                    f"the model cannot be trained on images of side {size}: {short(str(error))}"
                ) from error
    for attack in create_all(run.settings.attacks):
        attack.for_task(run.task)
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
            batch, names = (self._x, self._y, run.threat), run.settings.monitor
            metrics = measure(run.state.model, *batch, names, task=run.task)
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
    numbers = evaluation.line().replace(", ", "  ")
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
    attacks = attacks_while_training(run.settings.attacks, run.settings.keep)
    options: Any = {name: getattr(run.task, name) for name in ("loss", "outputs", "correct")}
    options |= {"device": run.device, "progress": run.console.is_shown}
    with run.console.paused(), run.signals.stopping_at_once(run.state.step):
        return evaluate(model, run.splits.watched, run.threat, attacks, **options)


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


def candidates(run: Run) -> dict[str, nn.Module]:
    """Return the models of this step that may be chosen, by name; the raw one first, as it wins a tie."""
    if run.settings.keep == "last" or run.state.evaluated is run.state.model:
        return {"": run.evaluated}
    return {RAW: run.state.model, AVERAGED: run.evaluated}


def better_weights(found: Mapping[str, Evaluation], keep: str) -> tuple[str, Evaluation]:
    """Return the candidate with the highest score, the first of equals; a void evaluation loses."""
    name = max(found, key=lambda each: -1.0 if found[each].void else score(found[each], keep))
    return name, found[name]


def score(evaluation: Evaluation, keep: str) -> float:
    """Return what is highest in the best epoch; with `--keep last` it only marks the best checkpoint."""
    accuracy = evaluation.accuracy
    if keep == "last":
        return min(accuracy.values()) if evaluation.judged else -max(evaluation.losses.values())
    return accuracy["pgd10"] if keep == "best-robust" else (accuracy["clean"] + accuracy["pgd10"]) / 2


def note_evaluation(state: State, keep: str, evaluation: Evaluation, chosen: Mapping[str, Any]) -> bool:
    """Note an epoch's evaluation on held-out images in the state; return whether it is the best so far.

    Where there are two kinds of weights, it is that of the better ones, which `chosen` names for the summary.
    """
    value, best = score(evaluation, keep), state.evaluated_epochs.get("best")
    # Clean accuracy decides between epochs of equal scores.
    cleaner = best is not None and evaluation.accuracy["clean"] > best["clean"]
    is_best = value > state.best or (value == state.best and cleaner)
    state.best = max(value, state.best)
    if keep == "last":
        return is_best
    accuracy = {name: evaluation.accuracy[name] for name in NEEDED}
    epoch: dict[str, Any] = {**state.place(), **accuracy, "n": evaluation.n, **chosen}
    state.evaluated_epochs["last"] = epoch
    if is_best:
        state.evaluated_epochs["best"] = epoch
    return is_best


def restore_chosen(run: Run) -> dict[str, Any] | None:
    """Load the chosen weights, and return which they are and why; None with `--keep last`.

    The weights that an alarm led to (`--guard stop`) are replaced too: the chosen epoch has been measured.
    """
    state, epochs = run.state, run.state.evaluated_epochs
    if run.settings.keep == "last" or not epochs:
        return None
    best, last = epochs["best"], epochs["last"]
    if state.place() != {name: best[name] for name in state.place()}:
        tensors, _ = read_checkpoint(run, run.folder.checkpoints.best)
        state.restore_weights(tensors)
    low, high = wilson(round(best["pgd10"] * best["n"]), best["n"])
    reason = _reason(run.settings.keep, best, last, (low, high))
    run.console.say(reason)
    return {"best": best | {"low": low, "high": high}, "last": last, "reason": reason}


def _reason(keep: str, best: dict[str, Any], last: dict[str, Any], interval: tuple[float, float]) -> str:
    """Say which epoch was chosen and why, in one sentence."""
    criterion = "PGD-10 accuracy" if keep == "best-robust" else "mean of clean and PGD-10 accuracy"
    low, high = interval
    which = f"{best['weights']} weights" if "weights" in best else "weights"
    text = (
        f"{which} of epoch {best['epoch']}: highest {criterion} on {best['n']} held-out images"
        f" (PGD-10 {100 * best['pgd10']:.1f} %, {100 * low:.1f} to {100 * high:.1f} %)"
    )
    if best == last:
        return f"{text}; it is the last one evaluated"
    relation = "within" if low <= last["pgd10"] <= high else "outside"
    return f"{text}; epoch {last['epoch']} has {100 * last['pgd10']:.1f} %, {relation} that interval"
