"""Training on one batch: as many weight updates as the method asks for, each from the batch in parts.

A batch that does not fit into memory at once is split (`accumulate`). For the method each part is a step of
its own: SORA's coefficient is updated once per part. What a method decides per batch, it decides once
(`ends_batch`); what it stores per row, all parts use. Losses are weighted by the parts' sizes, so the
gradients add up to those of the batch's mean loss.
"""

import itertools
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sora._seeds import STEP, mix, seed_torch
from sora.data import Batch
from sora.methods import Method, StepOutput
from sora.training import schedule
from sora.training.distributed import any_rank
from sora.training.journal import NUMBERS
from sora.training.run import Run

Step = Callable[..., StepOutput]


def train_on(run: Run, batch: Batch) -> StepOutput:
    """Craft, learn and step the optimiser; the numbers of the last update stay on the device."""
    state, settings, method = run.state, run.settings, run.method
    # Seeded by position, so that a resumed run draws the same noise and nothing needs to be saved.
    seed_torch(mix(settings.seed, state.attempt, state.step, run.rank, STEP))
    # The schedule counts the updates of the configured method, also while PGD replaces it.
    updates, replays = state.method.updates, method.updates
    method.threat = run.scheduled_threat
    step: Step = method.step
    if run.compiled_step is not None and method is state.method and method.threat is run.threat:
        step = run.compiled_step  # which is made for one method and one eps
    parts = 1
    if settings.accumulate > 1:  # BatchNorm cannot train on a part of a single image
        share = run.loader.smallest_share(state.step % state.steps_per_epoch)
        parts = max(1, min(settings.accumulate, share // 2))
    skips = settings.on_nonfinite == "skip"
    for replay in range(replays):
        update = state.step * updates + replay
        rate = schedule.apply(state.optimizer, settings, update, run.total_steps * updates)
        scale = None
        if state.scaler.is_enabled():  # the loss of both passes is scaled, so that gradients do not underflow
            scale = state.scaler.scale(torch.ones((), device=run.device))
        buffers = [buffer.clone() for buffer in state.model.buffers()] if skips else []
        if parts == 1:
            known = {"index": batch.index, "transform": batch.transform}
            out = step(run.model, batch.x, batch.y, **known, loss_scale=scale)
        else:
            out = step_in_parts(method, step, run.model, batch, parts, scale)
        if skips and any_rank(not bool(out.loss.isfinite()), run.device):
            state.skipped += 1
            for buffer, before in zip(state.model.buffers(), buffers, strict=True):
                buffer.copy_(before)  # BatchNorm's statistics are not finite either
            if state.scaler.is_enabled():  # the scale may be what made the loss overflow
                state.scaler.update(state.scaler.get_scale() / 2)
        elif update_weights(state.scaler, state.optimizer):
            method.after_update(state.model)
            if state.ema is not None:
                state.ema.update_parameters(state.model)
        state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    state.images += len(batch.y) * run.world
    run.journal.note(out, rate)
    return out


def update_weights(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Step the optimiser; return False if gradients overflowed and the weights stay as they were."""
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale() >= before  # it falls after an overflow only; 1 where float16 is not used


def step_in_parts(
    method: Method, step: Step, model: nn.Module, batch: Batch, parts: int, loss_scale: Tensor | None
) -> StepOutput:
    """Take a step on each part; return means over the batch, with images and logits of the last part."""
    total = len(batch.y)
    bounds = [total * part // parts for part in range(parts + 1)]
    outs, weights = [], []
    known: dict[str, Any] = {"index": batch.index, "transform": batch.transform}
    for low, high in itertools.pairwise(bounds):
        share, weight = slice(low, high), (high - low) / total
        method.ends_batch = high == total
        # DDP reduces once, with the last part's backward.
        waits = isinstance(model, DistributedDataParallel) and not method.ends_batch
        with model.no_sync() if waits else nullcontext():  # type: ignore[operator]
            own = {name: each if each is None else each[share] for name, each in known.items()}
            scale = weight if loss_scale is None else weight * loss_scale
            out = step(model, batch.x[share], batch.y[share], loss_scale=scale, **own)
        outs.append(out)
        weights.append(weight)

    def mean(values: Iterable[Tensor]) -> Tensor:
        return torch.stack([weight * value for weight, value in zip(weights, values, strict=True)]).sum(0)

    numbers = {name: mean(getattr(out, name) for out in outs) for name in NUMBERS}
    extras = {name: mean(out.extras[name] for out in outs) for name in outs[-1].extras}
    return outs[-1]._replace(**numbers, extras=extras)
