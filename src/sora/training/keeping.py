"""Which weights become the final model (`--keep`): the last, or those of the best epoch on held-out images.

`best-robust` is the epoch with the highest PGD-10 accuracy, `best` the one with the highest mean of clean and
PGD-10 accuracy. FGSM accuracy plays no part: catastrophic overfitting makes it rise. The interval of the
chosen epoch's PGD-10 accuracy is stored beside it, and whether the last epoch lies within it. Where weights
are averaged, each epoch's raw and averaged weights are compared: early in a run the average is near chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from sora.evaluation import Evaluation, wilson
from sora.training.run import Run
from sora.training.saving import read_checkpoint
from sora.training.state import State

NEEDED = ("clean", "pgd10")  # attacks that the choice needs
RAW, AVERAGED = "raw", "averaged"


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
        return min(accuracy.values())
    return accuracy["pgd10"] if keep == "best-robust" else (accuracy["clean"] + accuracy["pgd10"]) / 2


def note_evaluation(state: State, keep: str, evaluation: Evaluation, chosen: Mapping[str, Any]) -> bool:
    """Take an evaluation of held-out images into account; return whether this is the best epoch so far.

    Args:
        state: The state to note it in.
        keep: The setting.
        evaluation: Of the epoch's weights, of the better ones where there are two kinds.
        chosen: Which ones those are, as the summary will say it.
    """
    value, best = score(evaluation, keep), state.evaluated_epochs.get("best")
    # Clean accuracy decides between epochs of equal scores.
    cleaner = best is not None and evaluation.accuracy["clean"] > best["clean"]
    is_best = value > state.best or (value == state.best and cleaner)
    state.best = max(value, state.best)
    if keep == "last":
        return is_best
    epoch = state.place() | {name: evaluation.accuracy[name] for name in NEEDED} | {"n": evaluation.n}
    epoch |= chosen
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
