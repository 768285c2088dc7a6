"""What is measured or kept now and then while a run trains: monitors, evaluations, snapshots."""

from __future__ import annotations

import math
from typing import Any

from sora.data import Batch, stratified
from sora.methods import StepOutput
from sora.metrics import measure
from sora.runs import plain_state
from sora.training.evaluating import evaluate_watched
from sora.training.hooks import Hook
from sora.training.keeping import better_weights, candidates, note_evaluation
from sora.training.run import Run

SNAPSHOT_BYTES = 2_000_000_000  # of all epochs' snapshots together; larger networks keep fewer
MONITORED = 256  # images per measurement: enough for a curve, cheap enough for every step


class Monitors(Hook):
    """Metrics of the watched images every so many steps: always the same images and the same noise."""

    def start(self, run: Run) -> None:
        """Choose the images."""
        images = run.splits.watched
        chosen = stratified(images.labels, min(MONITORED, len(images)), seed=0)
        self.x, self.y = next(images.subset(chosen).batches(MONITORED, run.device))

    def after_step(self, run: Run, out: StepOutput) -> None:
        """Write the metrics beside the PertAlign of this very step."""
        settings = run.settings
        if run.state.step % settings.monitor_every or not run.writes:
            return
        with run.meter.paused():
            metrics = measure(run.state.model, self.x, self.y, run.threat, settings.monitor)
        line = run.state.place() | {"pert_align": float(out.pert_align)} | metrics
        run.journal.write("monitors", line | {"n": len(self.y), "split": run.splits.watched_name})


class Evaluations(Hook):
    """Accuracy of the watched images at the end of an epoch."""

    def after_epoch(self, run: Run) -> None:
        """Evaluate the weights, and note whether they are the best so far on held-out images."""
        settings, place = run.settings, run.state.place()
        if not settings.eval_every or place["epoch"] % settings.eval_every:
            return
        with run.meter.paused():
            run.average_buffers()
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
            # PertAlign can stay high where eps is more than the network can be robust to.
            run.console.warn(f"epoch {place['epoch']}: overfitted: the model withstands FGSM but not PGD-10")
        if split == "holdout" and not evaluation.void:  # images that are trained on cannot choose weights
            note_evaluation(run, evaluation, chosen)
        run.hooks.notify("on_evaluation", run, evaluation)


class Snapshots(Hook):
    """Weights kept for probes: of every epoch, and of the log steps before, at and after a guard event.

    What came before an alarm is known only afterwards, so the weights of the last log step stay in memory,
    and in checkpoints that are written between two log steps.
    """

    def __init__(self) -> None:
        self._events = 0
        self._every = 1  # epochs from one snapshot to the next

    def start(self, run: Run) -> None:
        """Events of an earlier part of the run have had their snapshots; choose how often to take more."""
        self._events = _guard_events(run)
        size = sum(tensor.nbytes for tensor in plain_state(run.state.evaluated).values())
        self._every = max(1, math.ceil(run.settings.epochs * size / SNAPSHOT_BYTES))
        if self._every > 1 and run.settings.snapshots:
            run.console.say(
                f"a snapshot is {size / 1e6:.0f} MB: one is kept every {self._every} epochs"
                f" ({SNAPSHOT_BYTES / 1e9:g} GB in all)"
            )

    def before_step(self, run: Run, batch: Batch) -> None:
        """Keep the weights of a log step that is about to be left, as a checkpoint of it has them."""
        state = run.state
        if state.previous_log == state.step:
            with run.meter.paused():
                weights = plain_state(state.evaluated)
                state.previous_weights = {name: tensor.clone() for name, tensor in weights.items()}

    def on_log(self, run: Run, line: dict[str, Any]) -> None:
        """Write the snapshots around an event."""
        # Without a guard there is no alarm to take snapshots around.
        if not run.settings.snapshots or run.settings.guard == "off" or not run.writes:
            return
        state, events = run.state, _guard_events(run)
        happened, self._events = events > self._events, events
        with run.meter.paused():
            if happened and state.previous_log is not None:
                run.write_snapshot(state.previous_log, state.previous_weights)
            if happened or state.event_logged:
                run.write_snapshot(state.step)
        state.previous_log, state.event_logged = state.step, happened

    def after_epoch(self, run: Run) -> None:
        """Keep the weights of the epoch."""
        run.average_buffers()
        due = run.state.place()["epoch"] % self._every == 0
        if run.settings.snapshots and run.writes and due:
            with run.meter.paused():
                run.write_snapshot(run.state.step)


def _guard_events(run: Run) -> int:
    """How many alarms and recoveries there have been."""
    return sum(1 + (event["recovered"] is not None) for event in run.state.events)
