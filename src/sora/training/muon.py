"""Muon (Jordan et al. 2024): momentum SGD whose steps move the strong directions of a matrix equally far."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

STEPS = 3  # Newton-Schulz iterations (published: 5); singular values below 2 % of the length stay small
A, B, C = 3.4445, -4.7750, 2.0315  # of its polynomial, as published
TINY = 1e-12  # instead of a length of 0


class Muon(Optimizer):
    """Weights of 2-d convolutions and of all linear layers but the last take orthogonal steps.

    Such a step has the length of the weight times the learning rate, and the weight keeps its length, unlike
    in the published Muon, as layers that are normalised afterwards allow; one that is zero stays zero. So the
    rate is about the angle of a step. All other parameters take Nesterov's steps and only they have
    `weight_decay`. torch's own Muon takes matrices only, not convolutions.
    """

    def __init__(self, model: nn.Module, lr: float, momentum: float, weight_decay: float) -> None:
        linear = [part for part in model.modules() if isinstance(part, nn.Linear)]
        layers = [part for part in model.modules() if isinstance(part, nn.Conv2d)] + linear[:-1]
        turned = {layer.weight for layer in layers}
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in trained if p in turned], "orthogonal": True},
            {"params": [p for p in trained if p not in turned], "orthogonal": False},
        ]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the parameters from their gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        rate, momentum, orthogonal = group["lr"], group["momentum"], group["orthogonal"]
        if not orthogonal:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = state["momentum_buffer"].mul_(momentum).add_(gradient)
        direction = gradient.add(buffer, alpha=momentum)
        if not orthogonal:
            parameter.sub_(direction, alpha=rate)
            return
        direction = orthogonalised(direction.flatten(1)).view_as(direction)
        length = parameter.norm()
        parameter.addcmul_(direction, length / direction.norm().clamp(min=TINY), value=-rate)
        parameter.mul_(length / parameter.norm().clamp(min=TINY))


def orthogonalised(matrix: Tensor) -> Tensor:
    """Return a matrix with the same singular vectors, and values from 0.7 to 1.2 but for the smallest."""
    x: Tensor = matrix / matrix.norm().clamp(min=TINY)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.T if tall else x
