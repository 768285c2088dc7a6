"""The check that a step does not wait for the device detects every way to do so."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sora import methods
from sora.methods import Crafted, Inputs, create

from .toys import LINF, images, two_layer
from .waiting import no_sync

WAITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu"),
    "to a device": lambda x: x.to(torch.device("cpu"), torch.float16),
    "to device=": lambda x: x.to(device="cpu", non_blocking=True),
    "mask": lambda x: x[x > 0.5],
    "nonzero": lambda x: x.nonzero(),
}


class FGSMWithCall(methods.info("fgsm").cls):
    """FGSM that calls a function of the batch while crafting."""

    call: Callable[[Tensor], object]

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        self.call(batch.x)
        return super().craft(model, batch)


@pytest.mark.parametrize("name", WAITS)
def test_waiting_in_a_step_is_caught(name: str) -> None:
    model, (x, y) = two_layer(), images()
    method = FGSMWithCall(LINF, create("fgsm", LINF).hyper)
    method.call = WAITS[name]
    method.step(model, x, y)
    with pytest.raises(AssertionError, match="waits for the device"), no_sync():
        method.step(model, x, y)


def test_changing_the_type_of_a_tensor_does_not_wait() -> None:
    x = torch.rand(4)
    with no_sync():
        x.to(torch.float16).to(x).to("meta")
