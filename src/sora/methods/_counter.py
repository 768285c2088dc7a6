"""A count of batches on the host, for methods that make an extra pass every few batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class BatchCounter(nn.Module):
    """Counts the batches of an epoch; part of the method's `state_dict`.

    Not a buffer: a number on the device would have to be read before deciding whether to make a pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def restart(self) -> None:
        """An epoch begins."""
        self.seen = 0

    def due(self, every: int) -> bool:
        """Count a batch; true for the 1st of the epoch and then for each `every`-th after it."""
        self.seen += 1
        return (self.seen - 1) % every == 0

    def get_extra_state(self) -> Tensor:
        """The count, for `state_dict`."""
        return torch.tensor(self.seen)

    def set_extra_state(self, state: Any) -> None:
        """The inverse of `get_extra_state`."""
        self.seen = int(state)
