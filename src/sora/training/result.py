"""The end of a run: evaluate the weights on the test set, write the model and the summary."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from sora.evaluation import Evaluation, warnings_about
from sora.runs import RunFolder, plain_state
from sora.runs.records import describe_data, machine, versions
from sora.training.evaluating import evaluate_test_set
from sora.training.keeping import restore_chosen
from sora.training.run import Run
from sora.training.state import mean


@dataclass(frozen=True, repr=False)
class TrainResult(Evaluation):
    """What training returns: the evaluation on the test set, and the run it belongs to."""

    summary: dict[str, Any] = field(default_factory=dict)
    """What `summary.json` holds."""
    folder: RunFolder | None = None
    """The run folder; None if none was kept."""


def finish(run: Run) -> TrainResult:
    """Evaluate the final weights on the test set, for the first and only time, and write the result."""
    run.average_buffers()
    kept = restore_chosen(run)
    final = run.evaluated
    evaluation = evaluate_test_set(run, final)
    summary = summarize(run, evaluation) | ({"kept": kept} if kept else {})
    if run.writes:
        about = {"weights": run.weights, "data": describe_data(run.dataset), "versions": versions()}
        run.folder.write_model(plain_state(final), run.network_description | about)
        run.folder.write_summary(summary)
    if final is not run.state.model:  # `sora.fit` trains in place: leave the weights that were measured
        run.state.model.load_state_dict(final.state_dict())
    for text in summary["warnings"]:
        run.console.warn(f"warning: {text}")
    run.hooks.notify("end", run, summary)
    shared = {each.name: getattr(evaluation, each.name) for each in fields(Evaluation)}
    return TrainResult(**shared, summary=summary, folder=run.folder)


def summarize(run: Run, evaluation: Evaluation) -> dict[str, Any]:
    """The summary of a finished run; accuracies are fractions of the test set."""
    settings, state, seconds = run.settings, run.state, run.meter.seconds
    lowest = state.guard.lowest if state.method.info.has_pert_align else math.nan
    return {
        "method": settings.method,
        "variant": settings.variant,
        "dataset": settings.dataset,
        "model": settings.model,
        "seed": settings.seed,
        "epochs": settings.epochs,
        "parameters": sum(parameter.numel() for parameter in run.state.model.parameters()),
        "n_train": len(run.splits.train),
        "versions": versions(),
        "machine": machine(run.device),
        "settings_hash": run.settings_hash,
        "data": describe_data(run.dataset),
        "train_seconds": round(seconds, 3),
        "images_per_second": round(state.images / max(seconds, 1e-9), 1),
        "peak_memory_mb": round(run.meter.peak_mb, 1),
        "weights": run.weights,
        **evaluation.record(),
        "warnings": warnings_about(evaluation),
        "fingerprint": evaluation.fingerprint,
        "pert_align": {"last": mean(state.recent), "min": lowest},
        "co": {
            "detected": bool(state.events),
            "verdict": evaluation.verdict,
            "guard": settings.guard,
            "watched_steps": max(0, state.guard.seen - state.guard.silent),
            "events": state.events,
        },
        "skipped_updates": state.skipped,
    }
