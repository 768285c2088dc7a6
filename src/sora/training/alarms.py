"""The guard in a run: what it watches, what an alarm records, and what is done about it (`--guard`).

The guard reads the PertAlign of the training batches. What they suggest is confirmed or dismissed on watched
images, always the same, in evaluation mode: first by a look, which is PertAlign of a few of them and their
FGSM examples, then by the ratio of their PGD-10 accuracy to their FGSM accuracy. For methods whose steps
define no PertAlign, looks at regular intervals take its place.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sora import methods, metrics
from sora._passes import frozen
from sora._task import PLAIN, Task
from sora.methods import Method
from sora.threat import Threat
from sora.training import distributed
from sora.training.guard import Event
from sora.training.run import Run
from sora.training.saving import read_checkpoint, save

EVERY = 10  # steps from one regular look to the next
IMAGES = 16
SHARE = 4  # at most a quarter of the batch size, so that a look stays cheap where batches are small
RATIO_IMAGES = 64
RATIO_FLOOR = 0.15  # FGSM accuracy below which a ratio says nothing; for many classes 1.5 times chance
LOOK = "watched_align"  # the name of a regular look in the log

COLLAPSE = "catastrophic overfitting: robust accuracy is collapsing while FGSM accuracy looks fine"
NEVER_ROBUST = "never robust so far: overfitted to its attack from the start; increasing eps gradually"
NEVER_ROBUST += " (--eps-warmup) may help"
DECLINE = "notice: robust accuracy may be declining slowly; PGD-10 on held-out images shows no collapse"

MAX_ROLLBACKS = 3
# Parts of the state that a return to an earlier state does not undo.
_NOT_UNDONE = ("attempt", "events", "best", "evaluated_epochs", "images", "seconds", "peak_mb")


class Return(NamedTuple):
    """A return to an earlier state."""

    weights: str  # `last_good`, or `initial` if none ever was good
    ends_run: bool  # otherwise another attempt begins


class Alarms:
    """Passes every step's PertAlign to the guard, and acts on its alarms as `--guard` says."""

    def __init__(self, run: Run) -> None:
        settings, info = run.settings, run.state.method.info
        self._run = run
        self._x, self._y = run.watched(max(1, min(IMAGES, settings.batch_size // SHARE)))
        self._floor = min(RATIO_FLOOR, 1.5 / run.dataset.num_classes)
        self._looks_regularly = settings.guard != "off" and info.adversarial and not info.has_pert_align
        self._fallback: Method | None = None
        if settings.guard == "pgd":
            labels = settings.smoothing_options() | vars(run.task)
            self._fallback = methods.create("pgd-10", run.threat, align="final", **labels).to(run.device)
        if self._keeps_good_at(0) and run.state.step == 0 and run.state.attempt == 0:
            save(run, good=True)  # the initial state, to go back to

    def method(self) -> Method:
        """Return the method of the next step: PGD while an alarm lasts, if `--guard pgd` asks for it."""
        state = self._run.state
        if self._fallback is None or not state.guard.alarmed:
            return state.method
        before = state.events[-1]["changed"] or {}
        state.events[-1]["changed"] = {"pgd_batches": before.get("pgd_batches", 0) + 1}
        return self._fallback

    def look_regularly(self) -> None:
        """Take a look if one is due, without waiting for its value."""
        run = self._run
        if self._looks_regularly and run.state.step % EVERY == 0:
            run.journal.add(LOOK, second_look(run.state.model, self._x, self._y, run.threat, run.task))

    def look(self) -> float:
        """Take a look now and return its value, averaged over ranks; all of them must call this together."""
        run = self._run
        value = second_look(run.state.model, self._x, self._y, run.threat, run.task).float()
        return distributed.mean_over_ranks(torch.stack([value])).item()

    def ratio(self) -> float:
        """Return PGD-10 over FGSM accuracy, of all ranks; infinite if FGSM accuracy is too low to tell."""
        (x, y), threat = self._run.watched(RATIO_IMAGES), self._run.threat
        values = metrics.measure(self._run.state.model, x, y, threat, ("fgsm", "pgd"))
        both = torch.tensor([values["fgsm"], values["pgd"]], device=x.device)
        fgsm, pgd = distributed.mean_over_ranks(both).tolist()
        return float(pgd / fgsm) if fgsm >= self._floor else math.inf

    def update(self, step: int, numbers: dict[str, float]) -> Event:
        """Update the guard by the numbers of one step; record and announce an alarm or its end."""
        run, state, action = self._run, self._run.state, self._run.settings.guard
        if state.method.info.has_pert_align:
            # A look measures the current weights, so only the newest step can raise an alarm: for the others
            # the look is infinite, which never confirms.
            look = self.look if step == state.step else lambda: math.inf
            event = state.guard.update(numbers["pert_align"], look=look, ratio=self.ratio)
        else:
            # PGD in place of such a method has a PertAlign, but its level is not that of the looks.
            event = state.guard.update(numbers.get(LOOK, math.nan), EVERY)
        if event == "ok":
            return event
        place, average = state.place(step), state.guard.average
        if event == "alarm":
            text = COLLAPSE if state.guard.was_healthy else NEVER_ROBUST
            outcome = {"recovered": None, "returned": None, "changed": None}
            state.events.append(place | {"action": action} | outcome)
        elif event == "notice":
            text = DECLINE
        else:
            text = "PertAlign has recovered"
            state.events[-1]["recovered"] = step
        if action != "off":
            run.record_event({"event": event} | place | {"average": average, "action": action})
            text = f"{text} (PertAlign average {average:.2f})"
            run.console.warn(f"step {step} (epoch {place['epoch']}): {text}")
        return event

    def is_good(self) -> bool:
        """Return whether the state of this log step is kept as the one to return to.

        States are called good at log steps only: between them the guard has not seen the latest steps.
        """
        state = self._run.state
        return state.guard.healthy and (state.epoch_ends or self._keeps_good_at(state.step))

    def _keeps_good_at(self, step: int) -> bool:
        """Return whether this step may be kept to return to: about ten per epoch, if `--guard` needs them."""
        settings = self._run.settings
        every = math.ceil(self._run.state.steps_per_epoch / 10 / settings.log_every) * settings.log_every
        return settings.guard in ("stop", "rollback") and step % every == 0

    def act(self, events: Sequence[Event]) -> Return | None:
        """Return to the last good state if one of these events asks for it, to end there or to try again.

        A new attempt has another data order. Where nothing ever was good, the order is not to blame: the
        attack was too strong from the beginning. Then eps also grows from 0 over the first half of it.
        """
        run, state, settings = self._run, self._run.state, self._run.settings
        if "alarm" not in events or settings.guard not in ("stop", "rollback"):
            return None
        kept = {name: getattr(state, name) for name in _NOT_UNDONE}
        state.restore(*read_checkpoint(run, run.folder.checkpoints.good))
        for name, value in kept.items():
            setattr(state, name, value)
        state.previous_log, state.event_logged = None, False  # they belong to the abandoned weights
        weights = "last_good" if state.step else "initial"
        run.console.warn(f"returned to the {weights.replace('_', ' ')} weights, of step {state.step}")

        ends_run = settings.guard == "stop" or state.attempt == MAX_ROLLBACKS
        changed: dict[str, Any] | None = None if ends_run else {"data_order": state.attempt + 1}
        if changed and weights == "initial":
            changed["eps_warmup"] = state.warmup = settings.epochs / 2
        state.events[-1] |= {"returned": state.step, "changed": changed}
        line = {"event": "returned"} | state.place() | {"action": settings.guard, "changed": changed}
        run.record_event(line)
        if changed:
            state.attempt += 1
            text = f"attempt {state.attempt + 1} begins; changed: another data order"
            text += f", eps grows from 0 over {state.warmup:g} epochs" if weights == "initial" else ""
            run.console.warn(text)
            save(run)  # a run killed from here on must not go back a second time
        elif weights == "initial":
            rollback = settings.guard == "rollback"
            advice = "--eps-warmup may help" if rollback else "try --guard rollback or --eps-warmup"
            run.console.warn(f"no robust weights were found: the model keeps its initial weights; {advice}")
        return Return(weights, ends_run)


def second_look(model: nn.Module, x: Tensor, y: Tensor, threat: Threat, task: Task = PLAIN) -> Tensor:
    """Return PertAlign of the images as a 0-d tensor; the model stays as it was."""
    with frozen(model), task.reading(model):
        return metrics.create("pertalign")(metrics.AttackedBatch(model, x, y, threat, task=task))
