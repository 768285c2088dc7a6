"""Mixed precision: the network's passes in a half format, everything else in float32.

The input stays a float32 leaf, so an attack's gradient, the perturbation and the curvature are float32 as
well; weights, their gradients and the optimiser's state are never cast.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Autocast(nn.Module):
    """A model whose forward runs in `dtype` where that is safe, and whose logits are float32."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        """From inputs to float32 logits."""
        with torch.autocast(x.device.type, self.dtype):
            logits: Tensor = self.model(x)
        return logits.float()


def at_precision(model: nn.Module, precision: str) -> nn.Module:
    """The model as training calls it; it shares its parameters with the one given."""
    return model if precision == "fp32" else Autocast(model, DTYPES[precision])


def make_scaler(precision: str, device: torch.device) -> GradScaler:
    """Keeps float16 gradients from underflowing; does nothing in other formats."""
    return GradScaler(device.type, enabled=precision == "fp16")
