"""What a run stores: checkpoints to continue from or to go back to, and snapshots for probes."""

import copy
import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from torch import Tensor

from sora.errors import RunError, UserError
from sora.runs import LOGS, plain_state
from sora.runs.checkpoints import Content
from sora.runs.resume import Recovered, read_own, recover
from sora.training.guard import Event
from sora.training.journal import Journal
from sora.training.run import Run

SNAPSHOT_BYTES = 2_000_000_000  # of all epochs' snapshots together; larger models keep fewer


def open_folder(run: Run, stack: ExitStack, allow_world_change: bool = False) -> None:
    """Create the run's folder or continue from its newest usable checkpoint; open the logs."""
    folder = run.folder
    stack.enter_context(run.signals)
    if run.writes:
        stack.enter_context(folder.lock())
        folder.refuse_finished()  # another process may have had the lock until now
    recovered = recover(folder, run.settings)
    if recovered is not None:
        restore(run, recovered, allow_world_change)
    if run.writes:
        folder.remove_leftovers()
        if not folder.exists():
            folder.write_config(run.resolved.stored())
    starts = {} if recovered is None else recovered.logs
    logs = {name: folder.open_log(name, starts.get(name)) for name in LOGS if run.writes}
    for log in logs.values():
        stack.callback(log.close)
    run.journal = Journal(logs, run.device)
    stack.enter_context(run.console)
    if run.resolved.recipes:
        run.console.say(run.resolved.announcement())


def restore(run: Run, recovered: Recovered, allow_world_change: bool) -> None:
    """Continue from a checkpoint."""
    path, tensors, header, state = recovered.path, recovered.tensors, recovered.header, run.state
    world, fingerprint = header["world"], header["data"]
    if world != run.world and not allow_world_change:
        then, now = (f"{count} process{'es' if count > 1 else ''}" for count in (world, run.world))
        raise UserError(
            f"the run in {run.folder.path} was trained with {then} and would continue with {now}; the result"
            f" would differ; continue with {world}, or allow the change with --allow-world-change"
        )
    if fingerprint != run.dataset.fingerprint:
        raise UserError(
            f"the run in {run.folder.path} was trained on other data (fingerprint {fingerprint}, now"
            f" {run.dataset.fingerprint}); choose another --out"
        )
    if world == run.world and header.get("network") not in (None, run.network):  # --sync-bn changes it too
        raise UserError(
            f"{run.folder.path} trained another model (code, options or frozen parts); choose another --out"
        )
    for reason in recovered.passed_over:
        run.console.warn(f"{reason}; falling back to an older one")
    try:
        state.restore(tensors, header)
    except (KeyError, RuntimeError) as error:
        raise RunError(f"checkpoint {path} does not match the run ({' '.join(str(error).split())})") from None
    run.buffers.restore(tensors, same_world=world == run.world)
    if run.writes:  # a kill may have come between the checkpoint and its other names
        run.folder.checkpoints.link_marks(path, header["marks"])
    run.console.say(f"resuming from step {state.step} ({path.name})")


def save(run: Run, *, best: bool = False, good: bool = False, average: bool = True) -> None:
    """Write a checkpoint of this step, marked as the best so far or as a good state to return to.

    All ranks must call this together. Their BatchNorm statistics are averaged first, or else stored for each.
    """
    state, checkpoints = run.state, run.folder.checkpoints
    state.pending += run.journal.collect()
    with run.meter.paused():
        if average:
            run.buffers.average()
        own = run.buffers.of_other_ranks()
        if not run.writes:
            return
        if not state.is_finite():
            raise RunError(f"weights are not finite at step {state.step}; {checkpoints.describe_newest()}")
        header = {"fingerprint": run.settings_hash, "settings": run.settings.flat(), "world": run.world}
        header |= {"data": run.dataset.fingerprint} | run.journal.header() | state.header()
        # One that training itself changes, by an attribute of a module, cannot be compared.
        header["network"] = run.network if run.network == run.hash_network() else None
        checkpoints.write(state.step, state.attempt, state.tensors() | own, header, best=best, good=good)


def read_checkpoint(run: Run, path: Path) -> Content:
    """Read a checkpoint of this run."""
    try:
        return read_own(run.folder, path, run.settings)
    except (UserError, RunError) as error:
        raise RunError(f"checkpoint {path} {error}") from None


class Snapshots:
    """Keeps weights for probes: of every epoch, and of the log steps before, at and after a guard event.

    What came before an alarm is known only afterwards, so the weights of the last log step stay in memory,
    and in checkpoints that are written between two log steps.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._writes = run, run.settings.snapshots and run.writes
        size = sum(tensor.nbytes for tensor in plain_state(run.state.evaluated).values())
        self._every = max(1, math.ceil(run.settings.epochs * size / SNAPSHOT_BYTES))  # epochs
        if self._every > 1 and run.settings.snapshots:
            run.console.say(
                f"a snapshot is {size / 1e6:.0f} MB: one is kept every {self._every} epochs"
                f" ({SNAPSHOT_BYTES / 1e9:g} GB in all)"
            )

    def remember(self) -> None:
        """Keep the weights of a log step that is about to be left, as a checkpoint of it has them."""
        with self._run.meter.paused():
            weights = plain_state(self._run.state.evaluated)
            self._run.state.previous_weights = {name: tensor.clone() for name, tensor in weights.items()}

    def write_around(self, events: Sequence[Event]) -> None:
        """Write the snapshots around the guard's events at a log step."""
        # Without a guard there is no alarm to take snapshots around.
        if not self._writes or self._run.settings.guard == "off":
            return
        state, happened = self._run.state, bool(events)
        with self._run.meter.paused():
            if happened and state.previous_log is not None:
                self._write(state.previous_log, state.previous_weights)
            if happened or state.event_logged:
                self._write(state.step)
        state.previous_log, state.event_logged = state.step, happened

    def write_epoch(self) -> None:
        """Write the weights of an epoch, if its turn has come."""
        self._run.buffers.average()
        if self._writes and self._run.state.place()["epoch"] % self._every == 0:
            with self._run.meter.paused():
                self._write(self._run.state.step)

    def _write(self, step: int, weights: dict[str, Tensor] | None = None) -> None:
        """Write the current weights, or those of `state.evaluated` at an earlier step."""
        run = self._run
        if weights is None:
            weights = plain_state(run.evaluated)
        elif run.estimates:
            model = copy.deepcopy(run.state.evaluated)
            for name, tensor in plain_state(model).items():
                tensor.copy_(weights[name])
            weights = plain_state(run.with_statistics(model))
        run.folder.snapshots.write(step, run.state.attempt, weights)
