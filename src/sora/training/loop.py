"""The training loop. Read it from top to bottom: set up, step, watch, save, hand over."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from signal import SIGTERM
from typing import Any

import torch
from torch import nn

from sora import data, methods
from sora._files import write_json, write_text
from sora._seeds import EPOCH, STEP, mix
from sora.data import Batch, Loader, Splits
from sora.errors import RunError
from sora.evaluation import Evaluation, evaluate
from sora.methods import Method
from sora.training import distributed, schedule
from sora.training._allocator import keep_freed_memory
from sora.training.accumulate import step_in_parts
from sora.training.alarms import Alarms
from sora.training.config import TrainConfig
from sora.training.console import Console, Interrupted, Signals
from sora.training.journal import Journal
from sora.training.monitors import Monitors
from sora.training.precision import at_precision, loss_scale
from sora.training.run import fingerprint, resolved, save_model
from sora.training.setup import prepare_model, prepare_state
from sora.training.snapshots import Snapshots
from sora.training.state import Checkpoints, mean
from sora.training.summary import summarize


def train(
    config: TrainConfig,
    *,
    model: nn.Module | None = None,
    dataset: data.Dataset | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train, watch, save and judge one model; continue if the run folder holds an unfinished run.

    Args:
        config: All settings.
        model: Train this module instead of building the one `config` names.
        dataset: Train on this instead of loading the one `config` names.
        quiet: Say nothing while working.

    Returns:
        What `summary.json` holds.
    """
    device = distributed.pick_device(config.device)
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.backends.cudnn.deterministic = True
    keep_freed_memory()
    with ExitStack() as stack:
        stack.enter_context(distributed.process_group(device))
        return _Run(config, device, model, dataset, quiet).go(stack)


class _Run:
    """One run: its parts, made once, and the loop over them."""

    def __init__(
        self,
        config: TrainConfig,
        device: torch.device,
        model: nn.Module | None,
        dataset: data.Dataset | None,
        quiet: bool,
    ) -> None:
        self.config = config = resolved(config, device)
        self.device, self.folder = device, config.folder()
        self.writes = distributed.rank() == 0
        dataset = dataset or data.load(config.dataset, config.data_dir)
        self.splits: Splits = data.split(
            dataset, holdout=config.holdout, limit_train=config.limit_train, limit_test=config.limit_test
        )
        augment = data.Augment.parse(config.augment)
        rank, world = distributed.rank(), distributed.world()
        self.loader = Loader(self.splits.train, config.batch_size, augment, config.seed, device, rank, world)
        self.total = config.epochs * len(self.loader)
        self.threat = config.threat()
        built, self.spec = prepare_model(config, dataset, device, model)
        self.state = prepare_state(config, built, dataset, len(self.splits.train), len(self.loader))
        trained = at_precision(self.state.model, config.precision)
        self.wrapped = distributed.wrap(trained)
        self.compiled = methods.compiled_step(self.state.method, trained) if config.compile else None
        self.fallback = methods.create("pgd-10", self.threat, align="final").to(device)
        self.monitors = Monitors(
            config.monitor, config.monitor_every, self.splits.holdout, self.threat, device
        )
        self.snapshots = Snapshots(self.folder / "snapshots", config.snapshots and self.writes)
        title = f"{config.method} on {config.dataset}, seed {config.seed}"
        self.console = Console(title, self.total, quiet or not self.writes)

    def go(self, stack: ExitStack) -> dict[str, Any]:
        """Train from wherever the folder says to the end, then judge the result."""
        self._open(stack)
        state = self.state
        signals = stack.enter_context(Signals())
        stack.enter_context(self.console)
        state.model.train()
        weights, action = "last", None
        while state.step < self.total:
            for batch in self._rest_of_epoch():
                began = time.perf_counter()
                self._train_on(batch)
                state.seconds += time.perf_counter() - began
                state.images += len(batch.y) * distributed.world()
                if self.monitors.due(state.step):
                    self._look()
                logged = state.step % self.config.log_every == 0 or state.epoch_ends
                action = self._log() if logged else None
                if action in ("stop", "rollback"):
                    break
                self._save_if_due(self._interrupted(signals, logged))
            if action in ("stop", "rollback"):
                weights = self.alarms.go_back(action)
                if self.alarms.is_over(action, weights):
                    break
                self.alarms.begin_again(weights)
                self._save()  # a run killed from here on must not go back a second time
                weights = "last"
        return self._hand_over(weights)

    def _open(self, stack: ExitStack) -> None:
        """Make or re-open the folder; restore the newest checkpoint that can be read."""
        self.checkpoints = Checkpoints(self.folder / "checkpoints", fingerprint(self.config), self.writes)
        logs = self.checkpoints.restore_newest(self.state, self.console.warn)
        if self.writes and not (self.folder / "config.yaml").exists():
            write_text(self.folder / "config.yaml", self.config.to_yaml())
        self.journal = stack.enter_context(Journal(self.folder, logs, self.device, self.writes))
        self.alarms = Alarms(
            self.config, self.state, self.journal, self.console, self.snapshots, self.checkpoints
        )
        if self.alarms.keeps_good(0) and not self.checkpoints.good.exists():
            self._save(good=True)

    def _rest_of_epoch(self) -> Iterator[Batch]:
        """The batches of the current epoch from the current step on."""
        state, seed = self.state, self.config.seed
        epoch, position = divmod(state.step, state.steps_per_epoch)
        if position == 0:
            torch.manual_seed(mix(seed, state.attempt, epoch, EPOCH))
            state.method.begin_epoch(epoch + 1)
        return self.loader.epoch(epoch, state.attempt, position)

    def _train_on(self, batch: Batch) -> None:
        """One batch: as many weight updates as the method asks for."""
        state, config = self.state, self.config
        torch.manual_seed(mix(config.seed, state.attempt, state.step, distributed.rank(), STEP))
        method: Method = self.fallback if config.guard == "pgd" and state.guard.alarmed else state.method
        factor = schedule.eps_factor(config, state.step, state.steps_per_epoch, at_least=state.warmup)
        method.threat = self.threat if factor == 1 else self.threat.scaled(factor)
        updates = state.method.updates
        for replay in range(method.updates):
            update = state.step * updates + replay
            rate = schedule.apply(state.optimizer, config, update, self.total * updates)
            compiled = self.compiled if method is state.method and factor == 1 else None  # of one eps only
            scale = loss_scale(state.scaler, self.device)
            out = step_in_parts(compiled or method.step, self.wrapped, batch, config.accumulate, scale)
            if config.on_nonfinite == "skip" and self._is_nonfinite(out.loss):
                state.skipped += 1
            else:
                state.scaler.step(state.optimizer)
                state.scaler.update()
                if state.ema is not None:
                    state.ema.update_parameters(state.model)
            state.optimizer.zero_grad(set_to_none=True)
        state.step += 1
        self.journal.note(out, rate)

    def _is_nonfinite(self, loss: torch.Tensor) -> bool:
        return distributed.any_rank(not bool(loss.isfinite()), self.device)

    def _look(self) -> None:
        """Write the monitors' numbers beside the PertAlign of this very step."""
        if self.writes:
            align = self.journal.latest("pert_align")
            found = self.monitors.look(self.state.model)
            self.journal.write("monitors", self.state.place() | {"pert_align": align} | found)

    def _log(self) -> str | None:
        """Write the steps since the last line as one, let the guard see each, and return what it wants."""
        self.state.pending += self.journal.collect()
        state, rows = self.state, self.state.pending
        first = state.step - len(rows) + 1
        action = None
        for step, row in enumerate(rows, start=first):
            if not math.isfinite(row["loss"]) and self.config.on_nonfinite == "stop":
                self._stop_nonfinite(step, row)
            state.recent.append(row["pert_align"])
            action = self.alarms.hear(step, row["pert_align"]) or action
        line = {name: mean([row.get(name, math.nan) for row in rows]) for name in rows[-1]}
        line["lr"] = rows[-1]["lr"]
        state.pending = []
        if self.config.guard != "off":  # else nobody speaks whose surroundings were worth a copy
            self.snapshots.logged(state)
        self.journal.write("metrics", state.place() | line)
        self.console.advance(state.step, line, state.images / max(state.seconds, 1e-9))
        return action

    def _stop_nonfinite(self, step: int, row: dict[str, float]) -> None:
        self.journal.write("events", {"event": "nonfinite"} | self.state.place(step) | row)
        values = ", ".join(f"{name} {row[name]:.4g}" for name in ("loss", "pert_align", "step_size", "lr"))
        raise RunError(
            f"the loss is not finite at step {step} ({values}); {self.checkpoints.describe_last()}"
        )

    def _interrupted(self, signals: Signals, logged: bool) -> int | None:
        """The signal to stop at; several ranks, which must agree on it, ask each other only at log steps."""
        if distributed.world() == 1:
            return signals.received
        heard = logged and distributed.any_rank(signals.received is not None, self.device)
        return signals.received or SIGTERM if heard else None

    def _save_if_due(self, interrupted: int | None) -> None:
        """Evaluate and checkpoint where an epoch ends; checkpoint where asked or when told to stop.

        States are called good at log steps only: between them the guard has not heard the latest steps.
        """
        state, every = self.state, self.config.checkpoint_every
        epoch_ends = state.epoch_ends
        good = state.guard.healthy and (epoch_ends or self.alarms.keeps_good(state.step))
        if not (epoch_ends or good or interrupted or (every and state.step % every == 0)):
            return
        self.state.pending += self.journal.collect()
        distributed.average_buffers(state.model)
        if state.ema is not None:
            distributed.average_buffers(state.ema)
        best = epoch_ends and self._evaluate()
        if epoch_ends:
            self.snapshots.write(state)
        self._save(best=best, good=good)
        if interrupted:
            raise Interrupted(interrupted, state.step)

    def _save(self, *, best: bool = False, good: bool = False) -> None:
        if self.writes:
            self.checkpoints.save(self.state, self.journal.lengths(), best=best, good=good)

    def _evaluate(self) -> bool:
        """Judge the weights on the held-out slice; True if they are the best so far."""
        state, config = self.state, self.config
        place = state.place()
        epoch = place["epoch"]
        if not len(self.splits.holdout) or not config.eval_every or epoch % config.eval_every:
            return False
        found = self._judge(self.splits.holdout)
        self.journal.write("evals", place | {"split": "holdout"} | found.record())
        numbers = "  ".join(f"{name} {100 * value:.1f} %" for name, value in found.accuracy.items())
        self.console.say(f"epoch {epoch}/{config.epochs}  held out (n={found.n})  {numbers}")
        score = min(found.accuracy.values())
        better = score > state.best
        state.best = max(score, state.best)
        return better

    def _judge(self, images: data.ImageSet) -> Evaluation:
        return evaluate(self.state.evaluated, images, self.threat, self.config.attacks, device=self.device)

    def _hand_over(self, weights: str) -> dict[str, Any]:
        """Judge the final weights on the test set, for the first and only time, and write the result."""
        state, config = self.state, self.config
        found = self._judge(self.splits.test)
        summary = summarize(config, state, found, len(self.splits.train), weights)
        if self.writes:
            save_model(self.folder, state.evaluated, self.spec, weights)
            write_json(self.folder / "summary.json", summary)
        return summary
