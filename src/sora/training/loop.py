"""The training loop. Read it from top to bottom: set up, step, log, act on alarms, evaluate, save."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from torch import nn

from sora._devices import pick_device
from sora._passes import held
from sora._seeds import GENERATOR
from sora._task import PLAIN, Task
from sora.data import Dataset
from sora.errors import RunError, UserError
from sora.settings import Resolved, Settings
from sora.training import process
from sora.training.alarms import Alarms
from sora.training.distributed import process_group
from sora.training.evaluating import Monitors, check_model, evaluate_epoch
from sora.training.guard import Event
from sora.training.hooks import Hook
from sora.training.journal import mean
from sora.training.process import Interrupted
from sora.training.result import TrainResult, finish
from sora.training.run import Run
from sora.training.saving import Snapshots, open_folder, save
from sora.training.update import train_on


def train(
    settings: Settings | Resolved,
    *,
    model: nn.Module | None = None,
    dataset: Dataset | None = None,
    hooks: Sequence[Hook] = (),
    quiet: bool = False,
    allow_world_change: bool = False,
    task: Task = PLAIN,
    box: Sequence[float] | None = (0.0, 1.0),
) -> TrainResult:
    """Train, watch, save and evaluate one model; continue if the run folder holds an unfinished run.

    Args:
        settings: All settings.
        model: Train this module instead of building the one the settings name.
        dataset: Train on this instead of loading the one the settings name.
        hooks: Called around every step, after the trainer's own work.
        quiet: Print nothing while working.
        allow_world_change: Continue a run also with another number of processes, which changes its result.
        task: How the model's output is read, its loss, and when it is correct.
        box: Limits of valid inputs, or None.
    """
    resolved = settings if isinstance(settings, Resolved) else Resolved(settings, {})
    device = pick_device(resolved.settings.device)
    with ExitStack() as stack:
        stack.enter_context(process.configured(resolved.settings.threads))
        stack.enter_context(process_group(device))
        if model is not None and not model.training:  # else a frozen BatchNorm stays in evaluation mode
            stack.callback(model.train().eval)
        with GENERATOR:
            run = Run(resolved, device, model, dataset, hooks, quiet, task, box)
        if not run.folder.exists():
            check_model(run)
        open_folder(run, stack, allow_world_change)
        for hook in run.hooks:
            stack.callback(hook.close, run)
        weights = train_steps(run)
        return finish(run, weights)


def train_steps(run: Run) -> str:
    """Train to the end, or until the guard ends the run; return which weights the model then has."""
    state, hooks = run.state, run.hooks
    monitors, snapshots, alarms = Monitors(run), Snapshots(run), Alarms(run)
    for hook in hooks:
        hook.start(run)
    run.meter.start()
    if state.epoch_open:
        complete_step(run, snapshots, logged=True)
    weights = "last"  # unless the guard ends the run
    for batch in run.batches():
        run.method = alarms.method()
        if state.step == state.previous_log:
            snapshots.remember()
        for hook in hooks:
            hook.before_step(run, batch)

        with held(state.model), GENERATOR:  # a thread that evaluates neither sees nor causes half a step
            out = train_on(run, batch)
        monitors.measure(out)
        alarms.look_regularly()
        for hook in hooks:
            hook.after_step(run, out)

        logged = state.step % run.settings.log_every == 0 or state.epoch_ends
        is_good = False
        if logged:
            line, events = log(run, alarms)
            snapshots.write_around(events)
            is_good = alarms.is_good()
            returned = alarms.act(events)
            for hook in hooks:
                hook.on_log(run, line)
            if returned is not None and returned.ends_run:
                weights = returned.weights
                break
            if returned is not None:
                continue  # with an earlier state: this step is not to be saved

        complete_step(run, snapshots, logged, is_good)
    run.meter.stop()
    return weights


def log(run: Run, alarms: Alarms) -> tuple[dict[str, Any], list[Event]]:
    """Write the means over the steps since the last line; return them, and the guard's events in between."""
    state = run.state
    state.pending += run.journal.collect()
    rows, state.pending = state.pending, []
    if any(numbers.pop("outside_box", 0.0) for numbers in rows):
        raise UserError(
            f"a batch of the {len(rows)} steps up to step {state.step} has inputs outside {run.threat.box} or"
            " not finite; pass un-normalised images (normalise inside the model)"
        )
    events = []
    for step, numbers in enumerate(rows, start=state.step - len(rows) + 1):
        if not math.isfinite(numbers["loss"]) and run.settings.on_nonfinite == "stop":
            run.record_event({"event": "nonfinite"} | state.place(step) | numbers)
            values = (f"{name} {numbers[name]:.4g}" for name in ("loss", "pert_align", "step_size", "lr"))
            newest = run.folder.checkpoints.describe_newest()
            raise RunError(f"the loss is not finite at step {step} ({', '.join(values)}); {newest}")
        state.recent.append(numbers["pert_align"])
        events.append(alarms.update(step, numbers))
        for hook in run.hooks:
            hook.on_numbers(run, step, numbers)
    names = dict.fromkeys(name for row in rows for name in row)
    means = {name: mean(row.get(name, math.nan) for row in rows) for name in names}
    line = state.place() | means | {"lr": rows[-1]["lr"]}
    run.journal.write("metrics", line)
    run.console.advance(line, state.images / max(run.meter.seconds, 1e-9))
    return line, [event for event in events if event in ("alarm", "recovered")]


def complete_step(run: Run, snapshots: Snapshots, logged: bool, is_good: bool = False) -> None:
    """End the epoch after its last step, save if a checkpoint is due, and stop if a signal came.

    A run that is stopped before this is done does it when it is resumed. Ranks compare the signals they
    received at log steps only. A good state is kept as the one to return to.
    """
    state, every = run.state, run.settings.checkpoint_every
    ends_epoch = logged and state.epoch_ends  # the last step of an epoch is always logged
    is_best = state.epoch_open = False
    try:
        if ends_epoch:
            snapshots.write_epoch()
            is_best = evaluate_epoch(run)
            for hook in run.hooks:
                hook.after_epoch(run)
    except Interrupted:
        state.epoch_open = True
        save(run, good=is_good)
        raise
    signal = run.signals.agreed(run.device, compare=logged)
    due = ends_epoch or is_good or (every > 0 and state.step % every == 0)
    if due or signal:
        # Only regular checkpoints average BatchNorm over ranks: an interruption must not change the weights.
        save(run, best=is_best, good=is_good, average=due)
    if signal:
        raise Interrupted(signal, state.step)
    for hook in run.hooks:
        hook.on_save_point(run)
