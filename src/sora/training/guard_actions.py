"""Actions on guard alarms: warn, stop, roll back to the last good state, or train on PGD until it is over."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from sora import methods
from sora.data import Batch
from sora.training import second_look
from sora.training.guard import Event, Guard
from sora.training.hooks import Hook
from sora.training.run import Run
from sora.training.second_look import SecondLook

MAX_ROLLBACKS = 3
# Parts of the state that a return to an earlier state does not undo.
_NOT_UNDONE = ("attempt", "events", "best", "evaluated_epochs", "images")


class GuardActions(Hook):
    """Passes every step's PertAlign to the guard and acts on its alarms as `--guard` says."""

    def __init__(self, look: SecondLook) -> None:
        self.look = look
        self.alarm = False
        """Whether an alarm was raised since the last log line."""

    def start(self, run: Run) -> None:
        """Keep the initial state to go back to."""
        if _keeps_good_at(run, 0) and run.state.step == 0 and run.state.attempt == 0:
            run.save(good=True)

    def on_numbers(self, run: Run, step: int, numbers: dict[str, float]) -> None:
        """Update the guard; record and announce an alarm or its end."""
        state, action = run.state, run.settings.guard
        event = self.update(run, step, numbers)
        if event == "ok":
            return
        place, average = state.place(step), state.guard.average
        if event == "alarm":
            state.events.append(
                place | {"action": action, "recovered": None, "returned": None, "changed": None}
            )
        elif state.events:
            state.events[-1]["recovered"] = step
        if action == "off":
            return
        self.alarm |= event == "alarm"
        run.write_event(event, **place, average=average, action=action)
        text = message(event, state.guard)
        run.console.warn(f"step {step} (epoch {place['epoch']}): {text} (PertAlign average {average:.2f})")

    def update(self, run: Run, step: int, numbers: dict[str, float]) -> Event:
        """Give the guard what it watches in this run."""
        guard = run.state.guard
        if not run.state.method.info.has_pert_align:
            # PGD in place of such a method has a PertAlign, but its level is not that of the looks.
            return guard.update(numbers.get(second_look.NAME, math.nan), second_look.EVERY)
        # A look measures the current weights, so it can confirm an alarm of the last step only.
        look = partial(self.look.value, run) if step == run.state.step else lambda: math.inf
        return guard.update(numbers["pert_align"], look=look)

    def on_log(self, run: Run, line: dict[str, Any]) -> None:
        """Mark a good state; return to the last one where an alarm asks for it, and end or try again.

        States are called good at log steps only: between them the guard has not seen the latest steps.
        """
        state, action = run.state, run.settings.guard
        run.is_good = state.guard.healthy and (state.epoch_ends or _keeps_good_at(run, state.step))
        alarm, self.alarm = self.alarm, False
        if not alarm or action not in ("stop", "rollback"):
            return
        weights = go_back(run)
        if action == "stop" or state.attempt == MAX_ROLLBACKS:
            record_return(run, changed=None)
            end_early(run, weights)
        else:
            try_again(run, weights)


class PgdFallback(Hook):
    """Trains on PGD while an alarm lasts (`--guard pgd`)."""

    def start(self, run: Run) -> None:
        """Build the attack to fall back to."""
        labels = run.settings.smoothing_options()
        self.fallback = methods.create("pgd-10", run.threat, align="final", **labels).to(run.device)

    def before_step(self, run: Run, batch: Batch) -> None:
        """Choose the method of this step; the alarm's event counts the batches that PGD gets."""
        state = run.state
        run.method = self.fallback if state.guard.alarmed else state.method
        if state.guard.alarmed:
            before = state.events[-1]["changed"] or {}
            state.events[-1]["changed"] = {"pgd_batches": before.get("pgd_batches", 0) + 1}


def go_back(run: Run) -> str:
    """Return to the last good state, the initial one if none ever was; say which of the two it is."""
    state = run.state
    kept = {name: getattr(state, name) for name in _NOT_UNDONE}
    state.restore(*run.read_checkpoint(run.folder.checkpoints.good))
    for name, value in kept.items():
        setattr(state, name, value)
    state.previous_log, state.event_logged = None, False  # they belong to the abandoned weights
    weights = "last_good" if state.step else "initial"
    run.console.warn(f"returned to the {weights.replace('_', ' ')} weights, of step {state.step}")
    return weights


def record_return(run: Run, changed: dict[str, Any] | None) -> None:
    """Record where an alarm led, and which settings the guard changed because of it."""
    state = run.state
    state.events[-1] |= {"returned": state.step, "changed": changed}
    run.write_event("returned", **state.place(), action=run.settings.guard, changed=changed)


def end_early(run: Run, weights: str) -> None:
    """End training with the weights that `go_back` led to; say so if they are of no use."""
    run.weights, run.ended_early = weights, True
    if weights == "initial":
        advice = (
            "--eps-warmup may help"
            if run.settings.guard == "rollback"
            else "try --guard rollback or --eps-warmup"
        )
        run.console.warn(f"no robust weights were found: the model keeps its initial weights; {advice}")


def try_again(run: Run, weights: str) -> None:
    """Continue from where `go_back` led, with another data order.

    Where nothing ever was good, the order is not to blame: the attack was too strong from the beginning. Then
    eps grows from 0 over the first half of the new attempt.
    """
    state = run.state
    changed: dict[str, Any] = {"data_order": state.attempt + 1}
    if weights == "initial":
        state.warmup = run.settings.epochs / 2
        changed["eps_warmup"] = state.warmup
    record_return(run, changed)
    state.attempt += 1
    run.console.warn(f"attempt {state.attempt + 1} begins; changed: {describe_changes(changed)}")
    run.save()  # a run killed from here on must not go back a second time


def describe_changes(changed: dict[str, Any]) -> str:
    """What the guard changed, in words."""
    parts = []
    if "data_order" in changed:
        parts.append("another data order")
    if "eps_warmup" in changed:
        parts.append(f"eps grows from 0 over {changed['eps_warmup']:g} epochs")
    if "pgd_batches" in changed:
        parts.append(f"{changed['pgd_batches']} batches trained on PGD-10")
    return ", ".join(parts)


def _keeps_good_at(run: Run, step: int) -> bool:
    """Whether a good state is kept at this step: about ten times per epoch, where an action needs one."""
    every = math.ceil(run.state.steps_per_epoch / 10 / run.settings.log_every) * run.settings.log_every
    return run.settings.guard in ("stop", "rollback") and step % every == 0


def message(event: str, guard: Guard) -> str:
    """An alarm or its end in one sentence."""
    if event == "recovered":
        return "PertAlign has recovered"
    if guard.was_healthy:
        return "catastrophic overfitting: robust accuracy is collapsing while FGSM accuracy looks fine"
    return (
        "never robust so far: overfitted to its attack from the start; increasing eps gradually"
        " (--eps-warmup) may help"
    )
