"""A method's step with craft and learn in one compiled graph: a function of (x, y, noise) alone.

Autograd runs inside the graph, so the compiler sees both passes at once and the attack's pass still computes
no weight gradients. The method's state is updated outside the graph, as in the eager step.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn

from sora._checks import check_gradients, check_inputs
from sora._passes import Scale, evaluating, held
from sora.errors import UserError
from sora.methods._base import METHODS, Method
from sora.methods._records import Crafted, Inputs, Learned, StepOutput

Noise = tuple[Tensor, ...]
Gradients = list[Tensor | None]


def can_compile() -> bool:
    """Return whether this torch can trace autograd inside a graph, which older versions cannot."""
    return hasattr(torch._dynamo.config, "trace_autograd_ops")


def compiled_step(method: Method, model: nn.Module, **options: Any) -> Callable[..., StepOutput]:
    """Return a function that replaces `method.step` on this model.

    Args:
        method: One whose `info` says `compilable`, in the attack mode "train".
        model: The bare module, on its device. The first step of a batch shape compiles, which takes minutes.
        options: For `torch.compile`, e.g. `backend`.
    """
    if not method.info.compilable or method.hyper.attack_mode != "train":
        able = ", ".join(entry.name for entry in METHODS.entries.values() if entry.compilable)
        raise UserError(f"--compile works with {able} in attack mode train; leave it out here")
    if distributed.is_available() and distributed.is_initialized():
        raise UserError("--compile works in one process: gradients inside a graph are not reduced over ranks")
    if not can_compile():
        raise UserError(
            f"--compile needs torch 2.11 or newer, this is {torch.__version__}; leave it out here"
        )
    checked: set[tuple[torch.Size, torch.dtype]] = set()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def both_passes(x: Tensor, y: Tensor, noise: Noise, scale: Scale) -> tuple[Crafted, Learned, Gradients]:
        """Return what was crafted, what was learned, and the parameters' gradients."""
        gradients: Gradients = []

        def differentiate(loss: Tensor, leaf: Tensor) -> Tensor | None:
            inputs = [leaf, *parameters] if leaf.requires_grad else parameters
            results = torch.autograd.grad(loss, inputs, allow_unused=True)
            gradients.extend(results[len(inputs) - len(parameters) :])
            return results[0] if leaf.requires_grad else None

        batch = Inputs(x, y, noise, loss_scale=scale)
        crafted = method.craft(model, batch)
        learned = method.learn(model, batch, crafted, differentiate)
        # Graphs, which `learn` has consumed, must not be returned by a compiled function.
        penalty = None if crafted.penalty is None else crafted.penalty.detach()
        extras = {name: value.detach() for name, value in crafted.extras.items()}
        kept = tuple(tensor.detach() for tensor in crafted.kept)
        return crafted._replace(penalty=penalty, extras=extras, kept=kept), learned, gradients

    core = torch.compile(both_passes, fullgraph=True, dynamic=False, **options)

    def step(
        _: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        index: Tensor | None = None,
        transform: Any = None,
        noise: Tensor | Noise | None = None,
        loss_scale: Scale = None,
    ) -> StepOutput:
        if (x.shape, x.dtype) not in checked:
            check_inputs(x, y, method.threat, method.task)
            with torch.no_grad(), evaluating(model):
                output = model(x)
            if not isinstance(output, Tensor) or method.task.outputs is not None:
                raise UserError("--compile needs a model that returns a tensor, read without outputs=")
            method.task.check_trained(output, y)
            checked.add((x.shape, x.dtype))
        batch = Inputs(x, y, method.noise_for(x, noise), index, transform, loss_scale, method.first_row)
        with held(model), torch._dynamo.config.patch(trace_autograd_ops=True):  # otherwise a graph break
            crafted, learned, gradients = core(x, y, batch.noise, loss_scale)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        check_gradients(model)
        return method.finish(batch, crafted, learned)

    return step
