"""What a run is made of before its first step: settings, network, method with its memory, optimiser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from sora import methods
from sora._devices import world
from sora._seeds import INIT, mix
from sora.data import Augment, Dataset, ImageSet
from sora.errors import UserError
from sora.models import fast_layout
from sora.runs import build_model, describe_model, load_weights
from sora.settings import GIVEN, Resolved, Settings
from sora.training.averaging import make_average
from sora.training.precision import make_scaler
from sora.training.schedule import rate_drops
from sora.training.state import State


def complete(
    resolved: Resolved, device: torch.device, model: nn.Module | None, dataset: Dataset | None
) -> Resolved:
    """The settings with nothing left open, and with the names of what is really trained."""
    settings = resolved.settings
    changes: dict[str, Any] = {
        "threads": settings.threads or torch.get_num_threads(),
        # Without an index: each rank has its own device.
        "device": device.type if settings.device == "auto" else settings.device,
        "out": str(settings.folder()),
    }
    if model is not None:
        options = {key: value for key, value in settings.set.items() if not key.startswith("model.")}
        changes |= {"model": f"{GIVEN}{type(model).__name__}", "set": options}
        changes |= dict.fromkeys(("width", "mean", "std"))
    if dataset is not None and settings.dataset != dataset.name:
        changes["dataset"] = f"{GIVEN}{dataset.name.removeprefix(GIVEN)}"
    return replace(resolved, settings=replace(settings, **changes))


def prepare_model(
    settings: Settings, dataset: Dataset, device: torch.device, given: nn.Module | None
) -> tuple[nn.Module, dict[str, Any]]:
    """The network with its first weights on the device, and the description that rebuilds it."""
    torch.manual_seed(mix(settings.seed, INIT))
    description = describe_model(settings, dataset)
    network = build_model(description) if given is None else given
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise UserError(f"the model {settings.model} has no parameters to train")
    if settings.init:
        load_weights(network, settings.init)
    if settings.sync_bn and world() > 1:
        if device.type == "cpu":
            raise UserError("--sync-bn needs GPUs: torch's SyncBatchNorm does not run on CPU")
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    return fast_layout(network.to(device)), description


def at_test_size(images: ImageSet, size: tuple[int, int], augment: Augment) -> ImageSet:
    """Training images from which augmentation makes images of the size that the model is tested on."""
    if not augment.size:
        return images.center(*size)
    if size != (augment.size, augment.size):
        raise UserError(
            f"augmentation resized-crop:{augment.size} makes images of another size than the test images,"
            f" {size[0]}x{size[1]}"
        )
    return images


def prepare_state(
    settings: Settings, model: nn.Module, dataset: Dataset, n_train: int, steps_per_epoch: int
) -> State:
    """Everything that will change while training, as it is before the first step."""
    device = next(model.parameters()).device
    options = settings.method_options() | settings.smoothing_options()
    method = methods.create(settings.method, settings.threat(), **options).to(device)
    if settings.accumulate > 1 and method.updates > 1:
        raise UserError(f"accumulate must be 1 with {settings.method}, which replays whole batches")
    if method.info.single_process and world() > 1:
        raise UserError(f"{settings.method} stores what one process has seen; train it with one process")
    size = dataset.image_size
    canvas = Augment.parse(settings.augment).draw(1, size, torch.Generator()).canvas_size(*size)
    method.setup(
        n_train=n_train,
        shape=(dataset.in_channels, *size),
        canvas=(dataset.in_channels, *canvas),
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        steps_per_epoch=steps_per_epoch,
        classes=len(dataset.classes),
        model=model,
        drops=rate_drops(settings),
    )
    if settings.ema and method.averaged is not None:
        raise UserError(f"{settings.method} averages weights itself; leave out ema")
    return State(
        model,
        make_optimizer(settings, model),
        method,
        make_average(model, settings.ema, settings.ema_buffers) if settings.ema else None,
        make_scaler(settings.precision, device),
        steps_per_epoch=steps_per_epoch,
    )


def make_optimizer(settings: Settings, model: nn.Module) -> Optimizer:
    """SGD or AdamW over all parameters, in the fused form that CPU and CUDA have.

    Not in float16, where the scaler may skip the first update: torch's fused SGD then leaves its momentum
    uninitialised.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate, decay = settings.lr, settings.weight_decay
    if settings.optimizer == "adamw":
        return AdamW(parameters, lr=rate, weight_decay=decay, fused=True)
    fused = settings.precision != "fp16"
    return SGD(parameters, lr=rate, momentum=settings.momentum, weight_decay=decay, fused=fused)
