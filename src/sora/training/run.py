"""The parts of one run, built once: data, network, method, optimiser, folder, logs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sora import data, methods
from sora._devices import rank, world
from sora._seeds import EPOCH, mix
from sora.data import Batch, Dataset, Loader
from sora.errors import RunError, UserError
from sora.methods import Method
from sora.runs import RunFolder, plain_state
from sora.runs.checkpoints import Content
from sora.runs.resume import Recovered, read_own, recover, settings_hash
from sora.settings import Resolved
from sora.threat import Threat
from sora.training import distributed, schedule
from sora.training.averaging import ESTIMATED_ON, with_estimated_statistics
from sora.training.console import Console
from sora.training.hooks import Hook, Hooks
from sora.training.interrupts import Interrupted
from sora.training.journal import Journal
from sora.training.meter import Meter
from sora.training.precision import at_precision
from sora.training.setup import at_test_size, complete, prepare_model, prepare_state
from sora.training.state import prefixed, under


class Run:
    """One run while it trains; hooks get it with every event.

    Args:
        resolved: All settings and where they come from.
        device: Where to compute.
        model: Train this module instead of building the one the settings name.
        dataset: Train on this instead of loading the one the settings name.
        quiet: Print nothing.
    """

    def __init__(
        self,
        resolved: Resolved,
        device: torch.device,
        model: nn.Module | None = None,
        dataset: Dataset | None = None,
        quiet: bool = False,
    ) -> None:
        self.resolved = complete(resolved, device, model, dataset)
        self.settings = settings = self.resolved.settings
        self.device, self.folder = device, RunFolder(settings.folder())
        self.folder.refuse_finished()
        self.rank, self.world = rank(), world()
        self.writes = self.rank == 0
        """Whether this process writes files; the others only compute."""
        self.dataset = dataset or data.load(settings.dataset, settings.data_dir)
        self.splits = data.split(
            self.dataset,
            holdout=settings.holdout,
            limit_train=settings.limit_train,
            limit_test=settings.limit_test,
        )
        augment = data.Augment.parse(settings.augment)
        images = at_test_size(self.splits.train, self.dataset.image_size, augment)
        self.loader = Loader(
            images, settings.batch_size, augment, settings.seed, device, self.rank, self.world
        )
        if settings.keep != "last" and self.splits.watched_name != "holdout":
            raise UserError(
                f"keep {settings.keep} needs held-out images; {self.dataset.name} is too small for them"
            )
        self.total_steps = settings.epochs * len(self.loader)
        self.threat = settings.threat()
        network, self.network_description = prepare_model(settings, self.dataset, device, model)
        self.state = prepare_state(settings, network, self.dataset, len(self.splits.train), len(self.loader))
        forward = at_precision(self.state.model, settings.precision)
        self.model = distributed.wrap(forward)
        """The network as the weight update calls it: in its precision, its gradients averaged over ranks."""
        self.compiled_step = methods.compiled_step(self.state.method, forward) if settings.compile else None
        self.method: Method = self.state.method
        """The method of the next step; during an alarm, `--guard pgd` replaces it by PGD."""
        self.weights = "last"
        """Which weights become the final model: last, last_good, initial, or as `--keep` says."""
        self.hands_over_raw = False
        """Whether `--keep` chose the raw weights of an epoch although there are averaged ones."""
        self.ended_early = False
        self.stop_signal: int | None = None
        self._interruptible = False
        self.is_good = self.is_best = False
        """Set by GuardActions and Evaluations, read and reset by Saving."""
        title = f"{settings.method} on {settings.dataset}, seed {settings.seed}"
        self.console = Console(title, self.total_steps, settings.epochs, quiet or not self.writes)
        self.settings_hash = settings_hash(settings)
        self._buffers_averaged_at = (-1, -1)

    def open(self, stack: ExitStack, hooks: Sequence[Hook], allow_world_change: bool = False) -> None:
        """Create the folder or continue from its newest usable checkpoint; open the logs."""
        if self.writes:
            stack.enter_context(self.folder.lock())
            self.folder.refuse_finished()  # another process may have had the lock until now
        recovered = recover(self.folder, self.settings)
        if recovered is not None:
            self._restore(recovered, allow_world_change)
        if self.writes:
            self.folder.remove_leftovers()
            if not self.folder.exists():
                self.folder.write_config(self.resolved.stored())
        logs = {} if recovered is None else recovered.logs
        self.journal = stack.enter_context(Journal(self.folder, logs, self.device, self.writes))
        self.meter = Meter(self.device, self.state.seconds, self.state.peak_mb)
        stack.enter_context(self.console)
        self.hooks = Hooks(list(hooks))
        self.state.model.train()
        if self.resolved.recipes:
            self.console.say(self.resolved.announcement())

    def _restore(self, recovered: Recovered, allow_world_change: bool) -> None:
        path, tensors, header = recovered.path, recovered.tensors, recovered.header
        world = header.get("world", self.world)  # older versions did not store it
        if world != self.world and not allow_world_change:
            raise UserError(
                f"the run in {self.folder.path} was trained with {_processes(world)} and would continue"
                f" with {_processes(self.world)}; the result would differ; continue with {world}, or allow"
                " the change with --allow-world-change"
            )
        if header.get("data", self.dataset.fingerprint) != self.dataset.fingerprint:
            raise UserError(
                f"the run in {self.folder.path} was trained on other data (fingerprint {header['data']}, now"
                f" {self.dataset.fingerprint}); choose another --out"
            )
        for reason in recovered.passed_over:
            self.console.warn(f"{reason}; falling back to an older one")
        try:
            self.state.restore(tensors, header)
        except (KeyError, RuntimeError) as error:
            raise RunError(
                f"checkpoint {path} does not match the run ({' '.join(str(error).split())})"
            ) from None
        own = under(f"rank.{self.rank}", tensors) if world == self.world else {}
        self._load_own_buffers(own)
        if not any(name.startswith("rank.") for name in tensors):
            self._buffers_averaged_at = (self.state.attempt, self.state.step)
        if self.writes:  # a kill may have come between the checkpoint and its other names
            self.folder.checkpoints.link_marks(path, header.get("marks", []))
        self.console.say(f"resuming from step {self.state.step} ({path.name})")

    def read_checkpoint(self, path: Path) -> Content:
        """The content of a checkpoint of this run."""
        try:
            return read_own(self.folder, path, self.settings)
        except (UserError, RunError) as error:
            raise RunError(f"checkpoint {path} {error}") from None

    def batches(self) -> Iterator[Batch]:
        """Batches from the current step to the end; follows the state when the guard moves it back."""
        state, seed = self.state, self.settings.seed
        while state.step < self.total_steps and not self.ended_early:
            epoch, position = divmod(state.step, state.steps_per_epoch)
            if position == 0:
                torch.manual_seed(mix(seed, state.attempt, epoch, EPOCH))
                state.method.threat = self.scheduled_threat  # memories may be filled anew within this radius
                state.method.begin_epoch(epoch + 1)
            attempt = state.attempt
            for batch in self.loader.epoch(epoch, attempt, position):
                yield batch
                if self.ended_early or state.attempt != attempt:
                    break

    @property
    def scheduled_threat(self) -> Threat:
        """The threat of the current step: while eps grows, a smaller ball."""
        state = self.state
        factor = schedule.eps_factor(self.settings, state.step, state.steps_per_epoch, at_least=state.warmup)
        return self.threat if factor == 1 else self.threat.scaled(factor)

    def average_buffers(self) -> None:
        """Bring BatchNorm's statistics of all ranks together, once per step at most."""
        place = (self.state.attempt, self.state.step)
        if place != self._buffers_averaged_at:
            self._buffers_averaged_at = place
            for module in self._modules_with_buffers().values():
                distributed.average_buffers(module)

    def stop(self, number: int) -> None:
        """Note a signal to stop; inside an evaluation it takes effect at once."""
        self.stop_signal = number
        if self._interruptible:
            raise Interrupted(number, self.state.step, "during the evaluation ")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A block that a signal ends at once: an evaluation may take hours and changes no weights."""
        if self.world > 1:  # the other ranks would wait forever for one that has left
            yield
            return
        self._interruptible = True
        try:
            if self.stop_signal is not None:
                self.stop(self.stop_signal)
            yield
        finally:
            self._interruptible = False

    def _buffers_of_ranks(self) -> dict[str, Tensor]:
        """What ranks other than the first have of their own, where their buffers were not averaged."""
        place = (self.state.attempt, self.state.step)
        if self.world == 1 or self._buffers_averaged_at == place:
            return {}
        tensors: dict[str, Tensor] = {}
        for part, module in self._modules_with_buffers().items():
            others = distributed.buffers_of_ranks(module)[1:]
            for number, buffers in enumerate(others, start=1):
                tensors |= prefixed(f"rank.{number}.{part}", buffers)
        return tensors

    def _load_own_buffers(self, tensors: dict[str, Tensor]) -> None:
        for part, module in self._modules_with_buffers().items():
            buffers = dict(module.named_buffers())
            for name, tensor in under(part, tensors).items():
                buffers[name].copy_(tensor)

    def _modules_with_buffers(self) -> dict[str, nn.Module]:
        state = self.state
        return {"model": state.model} | ({} if state.ema is None else {"ema": state.ema})

    @property
    def evaluated(self) -> nn.Module:
        """The network that is evaluated and stored; with `ema_buffers` estimate a new copy each time."""
        if self.hands_over_raw:
            return self.state.model
        return self._with_statistics(self.state.evaluated) if self._estimates else self.state.evaluated

    @property
    def _estimates(self) -> bool:
        return self.state.ema is not None and self.settings.ema_buffers == "estimate"

    def _with_statistics(self, network: nn.Module) -> nn.Module:
        images = self.splits.sample(min(ESTIMATED_ON, len(self.splits.train)))
        return with_estimated_statistics(network, images, self.settings.batch_size, self.device)

    def save(self, *, best: bool = False, good: bool = False, average: bool = True) -> None:
        """Write a checkpoint of this step; all ranks must call it together.

        Args:
            best: Mark it as the best so far.
            good: Mark it as the state to return to.
            average: Bring the ranks' BatchNorm statistics together first; else each rank's are stored.
        """
        state = self.state
        state.pending += self.journal.collect()
        with self.meter.paused():
            state.seconds, state.peak_mb = self.meter.seconds, self.meter.peak_mb
            if average:
                self.average_buffers()
            own = self._buffers_of_ranks()
            if not self.writes:
                return
            if not state.is_finite():
                where = self.folder.checkpoints.describe_newest()
                raise RunError(f"weights are not finite at step {state.step}; {where}")
            about = {"fingerprint": self.settings_hash, "settings": self.settings.flat(), "world": self.world}
            about["data"] = self.dataset.fingerprint
            header = about | self.journal.header() | state.header()
            tensors = state.tensors() | own
            self.folder.checkpoints.write(state.step, state.attempt, tensors, header, best=best, good=good)

    def write_snapshot(self, step: int, weights: dict[str, torch.Tensor] | None = None) -> None:
        """Keep weights for probes: the current ones, or those of `state.evaluated` at an earlier step."""
        if weights is None:
            weights = plain_state(self.evaluated)
        elif self._estimates:
            network = copy.deepcopy(self.state.evaluated)
            for name, tensor in plain_state(network).items():
                tensor.copy_(weights[name])
            weights = plain_state(self._with_statistics(network))
        self.folder.snapshots.write(step, self.state.attempt, weights)

    def write_event(self, event: str, **facts: Any) -> None:
        """Append a line to events.jsonl."""
        self.journal.write("events", {"event": event, **facts})


def _processes(count: int) -> str:
    return f"{count} process{'es' if count > 1 else ''}"
