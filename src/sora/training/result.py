"""The end of a run: evaluate the weights on the test set, write the model and the summary."""

import math
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from sora._task import PLAIN
from sora.attacks import create_all
from sora.errors import UserError
from sora.evaluation import Evaluation, EvaluationOptions
from sora.evaluation.records import evaluate_into
from sora.evaluation.subject import ABOUT, network_facts, select_test_images
from sora.figures import ATTACKS, Axis, Figure, Line, Panel, Rule, colour_of
from sora.runs import LogName, RunFolder, plain_state
from sora.runs.facts import describe_data, machine, versions
from sora.training.evaluating import RAW, restore_chosen
from sora.training.journal import mean
from sora.training.run import Run

_NAMED = ("method", "variant", "dataset", "model", "seed", "epochs")  # settings that the summary repeats


@dataclass(frozen=True, repr=False)
class TrainResult(Evaluation):
    """What training returns: the evaluation on the test set, and the run it belongs to."""

    summary: dict[str, Any] = field(default_factory=dict)
    """What `summary.json` holds."""
    folder: RunFolder | None = None
    """The run folder; None if none was kept."""
    logs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The lines of `metrics.jsonl`, `evals.jsonl` and `events.jsonl`."""

    def _title(self) -> str:
        events = self.summary["co"]["events"]
        alarm = f"first alarm at step {events[0]['step']}" if events else "no alarm"
        named = f"{self.summary['method']} on {self.summary['dataset']}, seed {self.summary['seed']}"
        return f"{named}; {super()._title()}, {alarm}"

    def plot(self, file: str | Path | None = None) -> Any:
        """Draw PertAlign, with alarms, and accuracies (or losses) while training.

        Returns a matplotlib figure; `file` is where it is saved (.png, .svg, .pdf).
        """
        from sora.figures import on_paper

        steps, colour = Axis("step", whole=True), colour_of(self.summary.get("method", ""))
        align = {row["step"]: row.get("pert_align") for row in self.logs["metrics"]}
        alarms = [row["step"] for row in self.logs["events"] if row.get("event") == "alarm"]
        items: list[Any] = [Line([*align], [*align.values()], "PertAlign", colour)] if align else []
        items += [Rule(step, name="alarm", colour=colour, in_legend=step == alarms[0]) for step in alarms]
        panels = [Panel(items, "PertAlign while training", steps, Axis("PertAlign"))]
        key = "accuracy" if self.judged else "losses"
        found: dict[str, dict[int, float]] = {}
        for row in self.logs["evals"]:
            for name, value in row.get(key, {}).items():
                found.setdefault(name, {})[row["step"]] = value
        curves = [
            Line([*values], [*values.values()], name, colour, ATTACKS.get(name, "solid"), marker="circle")
            for name, values in found.items()
        ]
        y = Axis("accuracy", 0, 1.02, percent=True) if self.judged else Axis("mean loss")
        panels.append(Panel(curves, f"{key} while training".capitalize(), steps, y))
        figure = Figure([panel for panel in panels if panel.items], columns=2)
        if not figure.panels:
            raise UserError("there is nothing to draw: the run logged no step and no evaluation")
        if file is not None:
            on_paper.save(figure, Path(file))
        return on_paper.draw(figure)


def finish(run: Run, weights: str) -> TrainResult:
    """Evaluate the final weights on the test set, for the first and only time, and write the result.

    `weights` says which ones the model has after training: `last`, `last_good` or `initial`.
    """
    run.buffers.average()
    kept = restore_chosen(run)
    final = run.evaluated
    if kept is not None:
        weights = run.settings.keep
        final = run.state.model if kept["best"].get("weights") == RAW else final
    evaluation = evaluate_test_set(run, final, weights)
    summary = summarize(run, evaluation, weights) | ({"kept": kept} if kept else {})
    if run.writes:
        about = {"weights": weights, "epochs": run.settings.epochs, "versions": versions()}
        about["data"] = describe_data(run.dataset)
        run.folder.write_model(plain_state(final), run.model_description | about)
        run.folder.write_summary(summary)
    if final is not run.state.model:  # `sora.fit` trains in place: leave the weights that were measured
        run.state.model.load_state_dict(final.state_dict())
    for text in summary["warnings"]:
        run.console.warn(f"warning: {text}")
    for hook in run.hooks:
        hook.end(run, summary)
    shared = {each.name: getattr(evaluation, each.name) for each in fields(Evaluation)}
    names: tuple[LogName, ...] = ("metrics", "evals", "events")
    logs = {name: run.folder.read_log(name) for name in names} if run.writes else {}
    return TrainResult(**shared, summary=summary, folder=run.folder, logs=logs)  # type: ignore[arg-type]


def evaluate_test_set(run: Run, model: nn.Module, weights: str) -> Evaluation:
    """Evaluate the final weights on the test set; a resumed run continues its evaluation."""
    _, images = select_test_images(run.dataset, run.settings.limit_test)
    about = {key: getattr(run.settings, key, None) for key in ABOUT}
    about |= {"weights": weights, "dataset": run.dataset.name, "images": images}
    attacks = create_all(run.settings.attacks)
    options = EvaluationOptions(
        num_classes=run.dataset.expected_classes,
        task=replace(run.task, class_weights=None),
        device=run.device,
        progress=run.console.is_shown,
        shard=run.world > 1,
        network=network_facts(run.model_description),
    )
    with run.console.paused(), run.signals.stopping_at_once(run.state.step):
        (evaluation,) = evaluate_into(
            run.folder, model, run.splits.test, [run.threat], attacks, options, about=about
        )
    return evaluation.only(attacks)


def summarize(run: Run, evaluation: Evaluation, weights: str) -> dict[str, Any]:
    """Return the summary of a finished run; accuracies are fractions of the test set."""
    settings, state, seconds = run.settings, run.state, run.state.seconds
    lowest = state.guard.lowest if state.method.info.has_pert_align else math.nan
    return {
        **{name: getattr(settings, name) for name in _NAMED},
        "parameters": sum(parameter.numel() for parameter in state.model.parameters()),
        "n_train": run.n_train,
        "versions": versions(),
        "machine": machine(run.device),
        "settings_hash": run.settings_hash,
        **({} if run.task == PLAIN else {"loss": run.task.name}),
        "data": describe_data(run.dataset),
        "train_seconds": round(seconds, 3),
        "images_per_second": round(state.images / max(seconds, 1e-9), 1),
        "peak_memory_mb": round(state.peak_mb, 1),
        "weights": weights,
        **evaluation.record(),
        "warnings": evaluation.warnings,
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
