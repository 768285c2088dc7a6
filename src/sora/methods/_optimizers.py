"""An optimiser of a method's own, for a head or a predictor that is not part of the trained network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sora._passes import Scale, scaled, unscaled


class OwnOptimizer(nn.Module):
    """Makes an optimiser's state part of its method's `state_dict`, so that runs resume bit for bit.

    Create it in `setup`, after the parameters and on their device: `self.adam = OwnOptimizer(Adam(...))`.

    Args:
        optimizer: Any torch optimiser whose state is tensors.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__()
        self.optimizer = optimizer

    def minimize(self, loss: Tensor, loss_scale: Scale = None) -> None:
        """One step that lowers `loss`. No gradient reaches parameters of anything else.

        Entries of the gradient that are not finite count as 0: one bad batch must not ruin the parameters.

        Args:
            loss: The loss, unscaled.
            loss_scale: Factor on it in the backward pass, for float16; the gradient is divided by it again.
        """
        gradients = torch.autograd.grad(scaled(loss, loss_scale), self._parameters_in_order())
        for parameter, gradient in zip(self._parameters_in_order(), gradients, strict=True):
            gradient = unscaled(gradient, loss_scale)
            parameter.grad = torch.where(gradient.isfinite(), gradient, 0.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _parameters_in_order(self) -> list[nn.Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for index, slots in self.optimizer.state_dict()["state"].items():
            for slot, value in slots.items():
                if value is not None:
                    destination[f"{prefix}{index}.{slot}"] = value

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_: Any) -> None:
        state: dict[int, dict[str, Tensor]] = {}  # empty before the optimiser's first step
        for name, value in state_dict.items():
            if name.startswith(prefix):
                index, slot = name.removeprefix(prefix).split(".", 1)
                # A copy: the optimiser changes it in place.
                state.setdefault(int(index), {})[slot] = value.clone()
        # This moves the state to the devices where the optimiser expects it.
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
