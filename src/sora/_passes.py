"""Passes through a model that training methods, attacks and probes share.

Modes during an attack, the memory order of images, input gradients, the loss, and projected gradient ascent.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from sora._seeds import seeded
from sora.threat import Threat

Scale = float | Tensor | None
Loss = Callable[[Tensor], Tensor]  # from logits to a scalar


def bare(model: nn.Module) -> nn.Module:
    """Return the module inside a DDP wrapper: attack gradients must not be reduced over ranks."""
    return model.module if isinstance(model, DistributedDataParallel) else model


_LOCKS = WeakKeyDictionary[nn.Module, threading.RLock]()


@contextmanager
def held(*models: nn.Module) -> Iterator[None]:
    """Let other threads wait that would train these models, or parts of them, or switch their modes."""
    # In one order, so that two threads never wait for each other; two models must be taken in one call.
    modules = sorted({part for model in models for part in model.modules()}, key=id)
    locks = [_LOCKS.setdefault(module, threading.RLock()) for module in modules]
    for lock in locks:
        lock.acquire()
    try:
        yield
    finally:
        for lock in locks:
            lock.release()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode inside the block; restore every module's own mode, also after an error."""
    with held(model):
        modes = [(module, module.training) for module in model.modules()]
        try:
            model.eval()
            yield
        finally:
            for module, training in modes:
                module.training = training


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode without parameter gradients inside the block, then restore all flags."""
    with evaluating(model):
        flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        try:
            for parameter, _ in flags:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter, requires_grad in flags:
                parameter.requires_grad_(requires_grad)


PROBED = 2  # images on which a model's outputs in both memory orders are compared

_AGREES = WeakKeyDictionary[nn.Module, dict[object, bool]]()
_KEPT = WeakSet[nn.Module]()


def fast_order(model: nn.Module, x: Tensor) -> Tensor:
    """Return `x` in channels-last order if it is a 4-d input on the CPU of a model with convolutions.

    The rule is fixed: nothing is timed. On the CPU the order of a convolution's input decides that of all
    feature maps after it, so the model itself is not changed. A model that fails in this order, or whose
    outputs then differ by more than rounding, gets `x` as it is. The first input of each shape shows whether
    it does: two of its images pass through the model in evaluation mode, in both orders. Compiled models
    choose the order of their feature maps themselves.
    """
    if not isinstance(model, nn.Module) or not isinstance(x, Tensor):
        return x  # refused later
    if x.dim() != 4 or x.device.type != "cpu" or model in _KEPT:
        return x
    if x.is_contiguous(memory_format=torch.channels_last) or not x.is_floating_point():
        return x
    known, key = _AGREES.setdefault(model, {}), (x.shape[1:], x.dtype)
    if key not in known:
        compiled = hasattr(model, "_orig_mod") or model._compiled_call_impl is not None
        convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
        known[key] = convolves and not compiled and _agrees(model, x[:PROBED].detach())
    return x.contiguous(memory_format=torch.channels_last) if known[key] else x


@contextmanager
def own_order(model: nn.Module) -> Iterator[None]:
    """Leave the inputs of a model in the order they have, inside the block."""
    _KEPT.add(model)
    try:
        yield
    finally:
        _KEPT.discard(model)


def close(first: object, second: object) -> bool:
    """Return whether two outputs of a model differ by rounding only."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor) or first.shape != second.shape:
        return False
    slack = torch.finfo(first.dtype).eps ** 0.5
    return torch.allclose(first, second, rtol=0, atol=slack * max(1.0, float(first.abs().max())))


def _agrees(model: nn.Module, x: Tensor) -> bool:
    outputs = []
    with evaluating(model), torch.no_grad():
        for order in (torch.contiguous_format, torch.channels_last):
            try:
                with seeded(0):
                    outputs.append(model(x.contiguous(memory_format=order)))
            except Exception:  # what it raises in the first order, the caller's own pass will raise again
                return False
    return close(*outputs)


def precise(z: Tensor) -> Tensor:
    """Convert to at least float32, where sums and squares are safe."""
    return z if z.dtype == torch.float64 else z.float()


def cross_entropy(logits: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy in at least float32; labels may be of any integer type."""
    y = y if y.is_floating_point() else y.long()
    return F.cross_entropy(precise(logits), y, reduction=reduction)


def mse(a: Tensor, b: Tensor) -> Tensor:
    """Return the mean squared difference over all entries, in at least float32."""
    return (precise(a) - precise(b)).square().mean()


def scaled(loss: Tensor, loss_scale: Scale) -> Tensor:
    """Return the loss times the scale, if there is one."""
    return loss if loss_scale is None else loss * loss_scale


def unscaled(gradient: Tensor, loss_scale: Scale) -> Tensor:
    """Divide the gradient of a scaled loss by the scale, in at least float32."""
    return gradient if loss_scale is None else precise(gradient) / loss_scale


def input_gradient(model: nn.Module, z: Tensor, y: Tensor, loss_scale: Scale = None) -> tuple[Tensor, Tensor]:
    """Return the gradient of the mean cross-entropy with respect to the input at `z`, and its logits."""
    return gradient_of(lambda logits: cross_entropy(logits, y), model, z, loss_scale)


def gradient_of(
    loss: Loss,
    model: nn.Module,
    z: Tensor,
    loss_scale: Scale = None,
    *,
    create_graph: bool = False,
    keep_graph: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of a loss of the logits with respect to the input at `z`, and the logits there.

    `z` becomes a leaf after all clamping, so no pixel's gradient is hidden; a leaf that already requires
    gradients is used itself. Autograd is asked for this one tensor: parameter gradients are neither computed
    nor accumulated.

    Args:
        loss: From logits to a scalar.
        model: The model, already in the mode it should be attacked in.
        z: Where the gradient is taken.
        loss_scale: Factor on the loss, for float16; the gradient is divided by it again.
        create_graph: Return a gradient that can itself be differentiated; fused attention cannot, so torch's
            plain kernel takes its place.
        keep_graph: Return the logits with their graph, for a training loss that also depends on them;
            otherwise they are detached.
    """
    leaf = z if z.is_leaf and z.requires_grad else z.detach().requires_grad_()
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH) if create_graph else nullcontext():
        logits = model(leaf)
        value, keeps = scaled(loss(logits), loss_scale), create_graph or keep_graph
        (gradient,) = torch.autograd.grad(value, leaf, create_graph=create_graph, retain_graph=keeps)
        return unscaled(gradient, loss_scale), logits if keep_graph else logits.detach()


class Ascent(NamedTuple):
    """The last iterate, the first few gradients, and the logits at the start (None without any step)."""

    x_adv: Tensor
    gradients: list[Tensor]
    start_logits: Tensor | None


def ascend(
    loss: Loss,
    model: nn.Module,
    x: Tensor,
    start: Tensor,
    threat: Threat,
    steps: int,
    length: float,
    *,
    loss_scale: Scale = None,
    keep: int = 0,
    eot: int = 1,
) -> Ascent:
    """Take steps of projected gradient ascent on a loss of the logits.

    Args:
        loss: From logits to the scalar to increase.
        model: The model, already in the mode it should be attacked in.
        x: Centre of the ball, shape (B, ...).
        start: The first iterate, shaped like `x`.
        threat: The norm ball and the box.
        steps: Number of ascent steps.
        length: Length of each step, in the units of the input.
        loss_scale: Factor on the loss, for float16; gradients are divided by it again.
        keep: How many gradients to return; keeping all would only hold memory.
        eot: Passes over which each gradient is averaged (expectation over transformation), for random models.
    """
    at, gradients, start_logits = start, list[Tensor](), None
    for step in range(steps):
        gradient, logits = gradient_of(loss, model, at, loss_scale)
        start_logits = logits if step == 0 else start_logits
        if eot > 1:
            others = [gradient_of(loss, model, at, loss_scale)[0] for _ in range(eot - 1)]
            gradient = torch.stack([gradient, *others]).mean(0)
        if step < keep:
            gradients.append(gradient)
        at = threat.projected_step(x, at - x, gradient, length)
    return Ascent(at, gradients, start_logits)
