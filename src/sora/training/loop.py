"""The training loop. Read it from top to bottom: set up, step, notify hooks, write the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import nn

from sora import methods
from sora._devices import pick_device, set_threads
from sora.data import Dataset
from sora.errors import RunError, UserError
from sora.settings import Resolved, Settings
from sora.training import distributed
from sora.training._allocator import keep_freed_memory
from sora.training.evaluating import check_model
from sora.training.guard_actions import GuardActions, PgdFallback
from sora.training.hooks import Hook
from sora.training.interrupts import Interrupted
from sora.training.periodic import Evaluations, Monitors, Snapshots
from sora.training.result import TrainResult, finish
from sora.training.run import Run
from sora.training.saving import Saving
from sora.training.second_look import SecondLook
from sora.training.state import mean
from sora.training.update import train_on


def train(
    settings: Settings | Resolved,
    *,
    model: nn.Module | None = None,
    dataset: Dataset | None = None,
    hooks: Sequence[Hook] = (),
    quiet: bool = False,
    allow_world_change: bool = False,
) -> TrainResult:
    """Train, watch, save and evaluate one model; continue if the run folder holds an unfinished run.

    Args:
        settings: All settings.
        model: Train this module instead of building the one the settings name.
        dataset: Train on this instead of loading the one the settings name.
        hooks: Called around every step, after the trainer's own.
        quiet: Print nothing while working.
        allow_world_change: Continue a run also with another number of processes, which changes its result.
    """
    resolved = settings if isinstance(settings, Resolved) else Resolved(settings, {})
    device = pick_device(resolved.settings.device)
    keep_freed_memory()
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        stack.callback(setattr, torch.backends.cudnn, "deterministic", torch.backends.cudnn.deterministic)
        set_threads(resolved.settings.threads)
        torch.backends.cudnn.deterministic = True
        stack.enter_context(distributed.process_group(device))
        run = Run(resolved, device, model, dataset, quiet)
        if not run.folder.exists():
            check_model(run)
        saving = stack.enter_context(Saving())
        run.open(stack, [*own_hooks(run.settings), saving, *hooks], allow_world_change)
        run.hooks.notify("start", run)
        run.meter.start()
        if run.state.epoch_open:
            finish_step(run)
        for batch in run.batches():
            run.hooks.notify("before_step", run, batch)
            out = train_on(run, batch)
            run.hooks.notify("after_step", run, out)
            place = run.state.place()
            if run.state.step % run.settings.log_every == 0 or run.state.epoch_ends:
                log(run)
            if run.ended_early or run.state.place() != place:
                continue  # rolled back or stopped by the guard: this step is not to be saved
            finish_step(run)
        run.meter.stop()
        return finish(run)


def finish_step(run: Run) -> None:
    """What follows a complete step; a run stopped on the way does it when it is resumed."""
    state = run.state
    state.epoch_open = False
    try:
        if state.epoch_ends:
            run.hooks.notify("after_epoch", run)
    except Interrupted:
        state.epoch_open = True
        run.save(good=run.is_good)
        raise
    run.hooks.notify("on_save_point", run)


def own_hooks(settings: Settings) -> list[Hook]:
    """What the trainer itself does around a step, in the order in which it must happen."""
    monitors = [Monitors()] if settings.monitor else []
    fallback = [PgdFallback()] if settings.guard == "pgd" else []
    method = methods.info(settings.method)
    look = SecondLook(settings.guard != "off" and method.adversarial and not method.has_pert_align)
    return [*monitors, look, Snapshots(), Evaluations(), GuardActions(look), *fallback]


def log(run: Run) -> None:
    """Bring the numbers of the steps since the last line to the host and write their means as one line."""
    state = run.state
    state.pending += run.journal.collect()
    rows, state.pending = state.pending, []
    if any(numbers.pop("outside_box", 0.0) for numbers in rows):
        raise UserError(
            f"a batch of the {len(rows)} steps up to step {state.step} has inputs outside {run.threat.box} or"
            " not finite; pass un-normalised images (normalise inside the model)"
        )
    for step, numbers in enumerate(rows, start=state.step - len(rows) + 1):
        if not math.isfinite(numbers["loss"]) and run.settings.on_nonfinite == "stop":
            stop_nonfinite(run, step, numbers)
        state.recent.append(numbers["pert_align"])
        run.hooks.notify("on_numbers", run, step, numbers)
    names = dict.fromkeys(name for row in rows for name in row)
    means = {name: mean(row.get(name, math.nan) for row in rows) for name in names}
    line = state.place() | means | {"lr": rows[-1]["lr"]}
    run.journal.write("metrics", line)
    run.console.advance(state.place(), line, state.images / max(run.meter.seconds, 1e-9))
    run.hooks.notify("on_log", run, line)


def stop_nonfinite(run: Run, step: int, numbers: dict[str, float]) -> None:
    """Record the step whose loss is not a number and end the run."""
    run.write_event("nonfinite", **run.state.place(step), **numbers)
    values = ", ".join(f"{name} {numbers[name]:.4g}" for name in ("loss", "pert_align", "step_size", "lr"))
    newest = run.folder.checkpoints.describe_newest()
    raise RunError(f"the loss is not finite at step {step} ({values}); {newest}")
