"""A model without the places where gradients are cut off, as a source of transferred attacks."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

SHARPNESS = 20.0  # of softplus; it differs from ReLU by at most log(2)/20
STRAIGHT_THROUGH = ("round", "floor", "ceil", "trunc", "sign", "clamp", "clip", "hardtanh", "relu6")
"""Functions whose gradient is zero almost everywhere or on half lines: they get the identity's."""


class Smoothed(nn.Module):
    """The same model with smooth activations and no place where gradients are cut off.

    Functions are replaced while the forward pass runs, whether a module or the code of `forward` calls them:
    ReLU by softplus, rounding and clamping by a straight-through estimate (BPDA, Athalye et al. 2018), a
    softmax over classes by its logarithm; `detach` and `no_grad` have no effect. The model is not copied.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the smoothed model."""
        with _Replacing():
            logits: Tensor = self.model(x)
        return logits


class _Replacing(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        if name == "_set_grad_enabled" and args == (False,):
            return None
        z = args[0] if args else kwargs.get("input")
        if not isinstance(z, Tensor) or not z.is_floating_point():
            return func(*args, **kwargs)
        if name in ("relu", "relu_"):
            return F.softplus(z, SHARPNESS)
        if name == "detach":
            return z
        if name == "softmax" and z.dim() == 2:  # over classes, not the attention of a transformer
            return z.log_softmax(1)
        if name in STRAIGHT_THROUGH:
            kwargs.pop("inplace", None)
            return z + (func(*args, **kwargs) - z).detach()
        return func(*args, **kwargs)
