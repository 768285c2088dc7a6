"""A method's step with craft and learn in one compiled graph: a function of (x, y, noise) alone.

Autograd runs inside the graph, so the compiler sees both passes at once and the attack's pass still computes
no weight gradients. What a method remembers is updated outside, as in the eager step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn

from sora._checks import check_inputs, check_logits
from sora._modes import evaluating
from sora._passes import Scale, scaled, unscaled
from sora.errors import UserError
from sora.methods._base import Crafted, Inputs, Learned, Method, StepOutput

Noise = tuple[Tensor, ...]
Core = Callable[[Tensor, Tensor, Noise, Scale], tuple[Crafted, Learned, tuple[Tensor, ...]]]


def core_of(method: Method, model: nn.Module) -> Core:
    """Both passes as a function: what was crafted, what was learned, and the parameters' gradients."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def core(x: Tensor, y: Tensor, noise: Noise, scale: Scale) -> Any:
        batch = Inputs(x, y, noise, loss_scale=scale)
        crafted = method.craft(model, batch)
        leaf = crafted.x_adv.detach().requires_grad_()
        logits = model(leaf)
        loss = method.objective(model, logits, batch, crafted)
        gradient, *rest = torch.autograd.grad(scaled(loss, scale), [leaf, *parameters])
        return crafted, Learned(loss.detach(), logits.detach(), unscaled(gradient, scale)), tuple(rest)

    return core


def compiled_step(method: Method, model: nn.Module, **options: Any) -> Callable[..., StepOutput]:
    """What stands in for `method.step` on this model.

    Args:
        method: One whose class says `compilable`, in the attack mode "train".
        model: The bare module, on its device. The first step of a batch shape compiles, which takes minutes.
        options: For `torch.compile`, e.g. `backend`.
    """
    if not method.compilable or method.hyper.attack_mode != "train":
        raise UserError("--compile knows fgsm-rs, n-fgsm and sora in attack mode train; leave it out here")
    if distributed.is_available() and distributed.is_initialized():
        raise UserError("--compile works in one process: gradients inside a graph are not reduced over ranks")
    checked: set[tuple[torch.Size, torch.dtype]] = set()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    core = torch.compile(core_of(method, model), fullgraph=True, dynamic=False, **options)

    def step(
        _: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        index: Tensor | None = None,
        transform: Any = None,
        noise: Noise | None = None,
        loss_scale: Scale = None,
    ) -> StepOutput:
        if (x.shape, x.dtype) not in checked:
            check_inputs(x, y, method.threat)
            with torch.no_grad(), evaluating(model):
                check_logits(model(x[:1]), y)
            checked.add((x.shape, x.dtype))
        batch = Inputs(x, y, method.draw(x) if noise is None else noise, index, transform, loss_scale)
        with torch._dynamo.config.patch(trace_autograd_ops=True):  # off by default: a graph break instead
            crafted, learned, gradients = core(x, y, batch.noise, loss_scale)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        with torch.no_grad():
            return method._output(batch, crafted, learned)

    return step
