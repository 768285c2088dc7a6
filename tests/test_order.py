"""Images pass through a model in channels-last order on the CPU; nothing else about it changes."""

import copy

import pytest
import torch
from torch import Tensor, nn

from sora import Linf, attacks, methods, models
from sora._passes import fast_order

THREAT = Linf(8 / 255)


class Net(nn.Module):
    """A convolution and a head, with something in between that may depend on the memory order."""

    def __init__(self, kind: str = "plain", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.kind = kind
        self.conv = nn.Conv2d(3, 4, 3, padding=1, dtype=dtype)
        self.head = nn.Linear(4 * 36, 5, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x).relu()
        if self.kind == "view":  # raises an error for feature maps in channels-last order
            return self.head(z.view(len(z), -1))
        if self.kind == "memory":  # no error, but other values
            return self.head(torch.as_strided(z, (len(z), 4 * 36), (4 * 36, 1)))
        return self.head(z.flatten(1))


def batch(dtype: torch.dtype = torch.float32, size: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(6, 3, size, size, generator=generator, dtype=dtype), torch.arange(6) % 5


def orders(model: nn.Module) -> list[bool]:
    """A list that fills with whether each input of the model is in channels-last order."""
    seen = list[bool]()
    model.register_forward_pre_hook(
        lambda _, args: seen.append(args[0].is_contiguous(memory_format=torch.channels_last))
    )
    return seen


@pytest.mark.parametrize(("kind", "turned"), [("plain", True), ("view", False), ("memory", False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_order_is_chosen_by_a_fixed_rule_and_only_where_the_outputs_agree(
    kind: str, turned: bool, dtype: torch.dtype
) -> None:
    model, (x, y) = Net(kind, dtype), batch(dtype)
    assert fast_order(model, x).is_contiguous(memory_format=torch.channels_last) == turned
    seen = orders(model)  # from the second input of this shape on nothing is compared
    for x_adv in (attacks.fgsm(model, x, y, THREAT), attacks.pgd(model, x, y, THREAT, 2, restarts=2)):
        assert x_adv.is_contiguous()
        assert x_adv.dtype == dtype
    assert set(seen) == {turned}
    seen.clear()
    attacks.pgd(model, x, y, THREAT, 2, channels_last=False)
    assert not any(seen)


@pytest.mark.parametrize("x", [torch.rand(4, 12), torch.rand(4, 3, 9), torch.rand(4, 3, 2, 4, 4)])
def test_other_dimensions_and_models_without_convolutions_keep_their_order(x: Tensor) -> None:
    assert fast_order(Net(), x) is x
    image = torch.rand(4, 3, 6, 6)
    assert fast_order(nn.Sequential(nn.Flatten(), nn.Linear(108, 3)), image) is image


@pytest.mark.parametrize("name", ["sora", "fgsm-rs", "pgd-2"])
def test_a_step_changes_by_rounding_only_and_stores_what_it_did(name: str) -> None:
    torch.manual_seed(0)
    first = models.create("preactresnet18", 10, width=4, stages=2)
    x, y = batch(size=8)
    found = []
    for channels_last in (True, False):
        model, method = copy.deepcopy(first), methods.create(name, THREAT)
        torch.manual_seed(1)
        out = method.step(model, x, y, channels_last=channels_last)
        assert out.x_adv.is_contiguous()
        assert all(p.is_contiguous() and p.grad.is_contiguous() for p in model.parameters())
        found.append([out.loss, out.x_adv, *(p.grad for p in model.parameters()), *model.buffers()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_module_that_fails_in_channels_last_trains_as_it_is() -> None:
    x, y = batch()
    model = nn.Sequential(nn.BatchNorm2d(3), Net("view"))
    methods.create("sora", THREAT).step(model, x, y)
    assert int(model[0].num_batches_tracked) == 2  # the comparison of the orders does not count
