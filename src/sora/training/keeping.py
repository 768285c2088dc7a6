"""Which weights a run hands over (`--keep`): the last, or those of the best epoch on held-out images.

`best-robust` is the epoch with the highest PGD-10 accuracy, `best` the one with the highest mean of clean and
PGD-10 accuracy. FGSM accuracy plays no part: catastrophic overfitting makes it rise. The interval of the
chosen epoch's PGD-10 accuracy is stored beside it, and whether the last epoch lies within it.
"""

from __future__ import annotations

from typing import Any

from sora.evaluation import Evaluation, wilson
from sora.training.run import Run
from sora.training.state import under

NEEDED = ("clean", "pgd10")  # attacks that the choice needs


def score(evaluation: Evaluation, keep: str) -> float:
    """What the best epoch has most of; with `--keep last` it only chooses the best checkpoint."""
    accuracy = evaluation.accuracy
    if keep == "last":
        return min(accuracy.values())
    return accuracy["pgd10"] if keep == "best-robust" else (accuracy["clean"] + accuracy["pgd10"]) / 2


def note_evaluation(run: Run, evaluation: Evaluation) -> None:
    """Take an evaluation of held-out images into account: is this the best epoch so far?"""
    state, keep = run.state, run.settings.keep
    value = score(evaluation, keep)
    run.is_best = value > state.best
    state.best = max(value, state.best)
    if keep == "last":
        return
    epoch = state.place() | {name: evaluation.accuracy[name] for name in NEEDED} | {"n": evaluation.n}
    state.evaluated_epochs["last"] = epoch
    if run.is_best:
        state.evaluated_epochs["best"] = epoch


def restore_chosen(run: Run) -> dict[str, Any] | None:
    """Load the weights to hand over, and say which they are and why; None with `--keep last`.

    The weights that an alarm led to (`--guard stop`) are replaced too: the chosen epoch has been measured.
    """
    state, epochs = run.state, run.state.evaluated_epochs
    if run.settings.keep == "last" or not epochs:
        return None
    best, last = epochs["best"], epochs["last"]
    if state.place() != {name: best[name] for name in state.place()}:
        tensors, _ = run.read_checkpoint(run.folder.checkpoints.best)
        state.model.load_state_dict(under("model", tensors))
        if state.ema is not None:
            state.ema.load_state_dict(under("ema", tensors))
    run.weights = run.settings.keep
    low, high = wilson(round(best["pgd10"] * best["n"]), best["n"])
    reason = _reason(run.settings.keep, best, last, (low, high))
    run.console.say(reason)
    return {"best": best | {"low": low, "high": high}, "last": last, "reason": reason}


def _reason(keep: str, best: dict[str, Any], last: dict[str, Any], interval: tuple[float, float]) -> str:
    """Which epoch was chosen and why, in one sentence."""
    criterion = "PGD-10 accuracy" if keep == "best-robust" else "mean of clean and PGD-10 accuracy"
    low, high = interval
    text = (
        f"weights of epoch {best['epoch']}: highest {criterion} on {best['n']} held-out images"
        f" (PGD-10 {100 * best['pgd10']:.1f} %, {100 * low:.1f} to {100 * high:.1f} %)"
    )
    if best == last:
        return f"{text}; it is the last one evaluated"
    relation = "within" if low <= last["pgd10"] <= high else "outside"
    return f"{text}; epoch {last['epoch']} has {100 * last['pgd10']:.1f} %, {relation} that interval"
