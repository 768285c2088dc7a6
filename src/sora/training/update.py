"""Training on one batch: as many weight updates as the method asks for."""

from __future__ import annotations

import torch

from sora._seeds import STEP, mix
from sora.data import Batch
from sora.methods import StepOutput
from sora.training import distributed, schedule
from sora.training.accumulate import step_in_parts
from sora.training.precision import loss_scale
from sora.training.run import Run


def train_on(run: Run, batch: Batch) -> StepOutput:
    """Craft, learn and step the optimiser; the numbers of the last update stay on the device."""
    state, settings, method = run.state, run.settings, run.method
    # Seeded by position, so that a resumed run draws the same noise and nothing needs to be saved.
    torch.manual_seed(mix(settings.seed, state.attempt, state.step, distributed.rank(), STEP))
    factor = schedule.eps_factor(settings, state.step, state.steps_per_epoch, at_least=state.warmup)
    method.threat = run.threat if factor == 1 else run.threat.scaled(factor)
    # The compiled step is made for one method and one eps.
    usable = run.compiled_step is not None and method is state.method and factor == 1
    step = run.compiled_step if usable and run.compiled_step is not None else method.step
    updates = state.method.updates
    for replay in range(method.updates):
        update = state.step * updates + replay
        rate = schedule.apply(state.optimizer, settings, update, run.total_steps * updates)
        scale = loss_scale(state.scaler, run.device)
        out = step_in_parts(step, run.model, batch, settings.accumulate, scale)
        if settings.on_nonfinite == "skip" and _nonfinite(out.loss, run.device):
            state.skipped += 1
        else:
            state.scaler.step(state.optimizer)
            state.scaler.update()
            if state.ema is not None:
                state.ema.update_parameters(state.model)
        state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    state.images += len(batch.y) * distributed.world()
    run.journal.note(out, rate)
    return out


def _nonfinite(loss: torch.Tensor, device: torch.device) -> bool:
    return distributed.any_rank(not bool(loss.isfinite()), device)
