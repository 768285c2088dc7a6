"""Passes through a model that both training methods and attacks make, and the loss they share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from sora.curvature import precise

Scale = float | Tensor | None


def bare(model: nn.Module) -> nn.Module:
    """The module inside a DDP wrapper: attack gradients must not be reduced over ranks."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def cross_entropy(logits: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy in at least float32."""
    return F.cross_entropy(precise(logits), y, reduction=reduction)


def scaled(loss: Tensor, loss_scale: Scale) -> Tensor:
    """The loss times the scale, if there is one."""
    return loss if loss_scale is None else loss * loss_scale


def unscaled(gradient: Tensor, loss_scale: Scale) -> Tensor:
    """A gradient of a scaled loss in its true size, in at least float32."""
    return gradient if loss_scale is None else precise(gradient) / loss_scale


def input_gradient(model: nn.Module, z: Tensor, y: Tensor, loss_scale: Scale = None) -> tuple[Tensor, Tensor]:
    """Gradient of the mean cross-entropy with respect to the input at `z`, and the logits there."""
    return gradient_of(lambda logits: cross_entropy(logits, y), model, z, loss_scale)


def gradient_of(
    loss: Callable[[Tensor], Tensor],
    model: nn.Module,
    z: Tensor,
    loss_scale: Scale = None,
    *,
    create_graph: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gradient of a loss of the logits with respect to the input at `z`, and the logits there, detached.

    `z` becomes a leaf after all clamping, so no pixel's gradient is hidden. Autograd is asked for this one
    tensor: the parameters' gradients are neither computed nor filled.
    """
    leaf = z.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(leaf)
        (gradient,) = torch.autograd.grad(scaled(loss(logits), loss_scale), leaf, create_graph=create_graph)
        return unscaled(gradient, loss_scale), logits.detach()
