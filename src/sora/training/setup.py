"""What a run is made of before its first step: the network, the method with its memory, the optimiser."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sora import data, methods
from sora._seeds import INIT, mix
from sora.errors import UserError
from sora.models import fast_layout
from sora.training import distributed
from sora.training.config import TrainConfig
from sora.training.precision import make_scaler
from sora.training.run import build_model, load_weights
from sora.training.state import State
from sora.training.sync_bn import sync_batch_norm


def prepare_model(
    config: TrainConfig, dataset: data.Dataset, device: torch.device, given: nn.Module | None
) -> tuple[nn.Module, dict[str, Any]]:
    """The network with its first weights on the device, and the table that rebuilds it."""
    torch.manual_seed(mix(config.seed, INIT))
    built, spec = build_model(config, dataset) if given is None else (given, {"name": "given"})
    if config.init:
        load_weights(built, config.init)
    if config.sync_bn and distributed.world() > 1:
        built = sync_batch_norm(built.to(device))
    return fast_layout(built.to(device)), spec


def prepare_state(
    config: TrainConfig, model: nn.Module, dataset: data.Dataset, n_train: int, steps_per_epoch: int
) -> State:
    """Everything that will change while training, as it is before the first step."""
    device = next(model.parameters()).device
    method = methods.create(config.method, config.threat(), **config.hyper_table()).to(device)
    if config.accumulate > 1 and method.updates > 1:
        raise UserError(f"accumulate must be 1 with {config.method}, which replays whole batches")
    if method.info.single_process and distributed.world() > 1:
        raise UserError(
            f"{config.method} remembers the batches that one process saw; train it in one process"
        )
    size = dataset.image_size
    canvas = data.Augment.parse(config.augment).draw(1, size, torch.Generator()).canvas_size(*size)
    method.setup(
        n_train=n_train,
        shape=(dataset.in_channels, *size),
        canvas=(dataset.in_channels, *canvas),
        batch_size=config.batch_size,
        epochs=config.epochs,
        steps_per_epoch=steps_per_epoch,
    )
    average = get_ema_multi_avg_fn(config.ema or 0.0)  # type: ignore[no-untyped-call]
    ema = AveragedModel(model, multi_avg_fn=average) if config.ema else None
    return State(
        model,
        make_optimizer(config, model),
        method,
        ema,
        make_scaler(config.precision, device),
        steps_per_epoch=steps_per_epoch,
    )


def make_optimizer(config: TrainConfig, model: nn.Module) -> Optimizer:
    """SGD or AdamW over all parameters, in the fused form that CPU and CUDA have."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.optimizer == "adamw":
        return AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay, fused=True)
    return SGD(
        parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=True
    )
