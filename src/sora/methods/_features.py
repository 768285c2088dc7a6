"""The features of a model: the input of its last linear layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from sora.errors import UserError


def last_linear(model: nn.Module) -> nn.Linear:
    """Return the linear layer that was added to the model last, which computes the logits."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise UserError("this method needs a model whose last layer is linear (torch.nn.Linear)")
    return layers[-1]


class Features:
    """Records the input of the last linear layer in each pass, with its graph, one row per example."""

    _last: Tensor | None = None

    @property
    def last(self) -> Tensor:
        """The features of the latest pass inside `recording`."""
        if self._last is None:
            raise UserError(
                "the last linear layer of the model was not used in its forward pass; if the model was"
                " compiled with torch.compile, pass the module itself"
            )
        return self._last

    @contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        """Record inside the block; nothing is kept after it, as the graph holds activations."""

        def record(module: nn.Module, args: tuple[Any, ...]) -> None:
            self._last = args[0].flatten(1)

        handle = last_linear(model).register_forward_pre_hook(record)
        try:
            yield
        finally:
            handle.remove()
            self._last = None
