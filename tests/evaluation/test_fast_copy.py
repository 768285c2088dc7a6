"""The copy of a model for long attacks computes the same, and the model itself has the last word."""

import functools
import itertools
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import sora.evaluation.accuracy as accuracy
from sora import Linf, evaluate, models
from sora.evaluation.fast_copy import Affine, fast_copy, same_function

THREAT = Linf(8 / 255)
X = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def randomised(model: nn.Module) -> nn.Module:
    """The model in evaluation mode with BatchNorm layers that do something."""
    torch.manual_seed(0)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None:
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
            if part.affine:
                nn.init.uniform_(part.weight, 0.5, 2)
                nn.init.normal_(part.bias)
    return model.eval()


class Parts(nn.Module):
    """Convolutions and BatchNorm in the order that `forward` gives them."""

    def __init__(self, kind: str = "", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.kind = kind
        self.conv, self.second = (nn.Conv2d(3, 3, 3, padding=1, dtype=dtype) for _ in range(2))
        tracked, affine = kind != "batch statistics", kind != "plain statistics"
        self.norm = nn.BatchNorm2d(3, affine=affine, track_running_stats=tracked, dtype=dtype)
        self.other = nn.BatchNorm2d(3, dtype=dtype)
        self.head = nn.Linear(192, 4, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(self.conv(x))
        if self.kind == "shared convolution":
            z = self.other(self.conv(z.relu()))
        elif self.kind == "shared norm":
            z = self.norm(self.second(z.relu()))
        elif self.kind == "used twice":
            before = self.second(z.relu())
            z = self.other(before) + before
        elif self.kind == "by value" and float(z.detach().abs().max()) > 0:  # cannot be traced
            z = self.other(self.second(z))
        elif self.kind == "view":  # fails in channels-last
            return self.head(z.view(len(z), -1))
        return self.head(z.relu().flatten(1))

    def train(self, mode: bool = True) -> "Parts":
        super().train(mode)
        if self.kind == "training statistics":
            self.norm.train()  # whatever the mode of the model
        return self


KINDS = {  # the number of BatchNorm layers that become an affine pass
    "": 0,
    "plain statistics": 0,
    "shared convolution": 2,
    "shared norm": 0,
    "used twice": 1,
    "by value": 2,
    "batch statistics": 0,
    "training statistics": 0,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_copy_is_the_same_function_and_folds_only_what_it_may(kind: str, dtype: torch.dtype) -> None:
    model, x = randomised(Parts(kind, dtype)), X.to(dtype)
    copied = fast_copy(model)
    assert copied is not None
    torch.testing.assert_close(copied(x), model(x))
    assert same_function(model, copied, x, torch.arange(12) % 4)
    assert sum(isinstance(part, Affine) for part in copied.modules()) == KINDS[kind]


@pytest.mark.parametrize("name", ["patchresnet", "preactresnet18", "resnet18", "senet18", "wideresnet28-10"])
def test_models_of_the_package_have_a_copy_without_batchnorm(name: str) -> None:
    options: dict[str, Any] = {"depth": 10} if name.startswith("wide") else {"stages": 2}
    model = randomised(models.create(name, 4, width=4, **options))
    copied = fast_copy(model)
    assert copied is not None
    assert not any(isinstance(part, nn.BatchNorm2d) for part in copied.modules())
    torch.testing.assert_close(copied(X), model(X), rtol=1e-4, atol=1e-4)


def test_models_with_hooks_or_without_batchnorm_or_that_cannot_be_copied_have_none() -> None:
    hooked = randomised(Parts())
    hooked.get_submodule("conv").register_forward_hook(lambda module, args, output: output * 2)
    stubborn = randomised(Parts())
    stubborn.lock = threading.Lock()  # type: ignore[assignment] # cannot be copied
    for model in (hooked, stubborn, nn.Sequential(nn.Flatten(), nn.Linear(192, 4))):
        assert fast_copy(model) is None


@pytest.mark.parametrize("kind", ["", "view", "shared norm", "training statistics", "hooked", "flat"])
def test_long_attacks_give_what_the_model_itself_gives(kind: str) -> None:
    model: nn.Module = randomised(Parts(kind))
    x = X
    if kind == "flat":  # an input that is not 4-d
        model, x = nn.Sequential(nn.Unflatten(1, (3, 8, 8)), model).eval(), X.flatten(1)
    if kind == "hooked":
        model.register_forward_hook(lambda module, args, output: output * 2)
    y = model(x).argmax(1)
    found = [evaluate(model, (x, y), THREAT, ["pgd10x12"], fast=fast) for fast in (True, False)]
    assert torch.equal(*(each.predictions["pgd10x12"] for each in found))
    uses = kind in ("", "shared norm", "flat")
    settings = [each.settings["pgd10x12"].get("copy") for each in found]
    assert settings == [{"kind": "folded", "differed": []} if uses else None, None]


def test_examples_that_only_the_copy_loses_are_listed_and_attacked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Wrong(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            flip = torch.arange(len(x)) % 3 == 0  # these it always gets wrong
            return torch.where(flip[:, None], -self.model(x), self.model(x))

    model = randomised(Parts())
    y = model(X).argmax(1)
    plain = evaluate(model, (X, y), Linf(1e-4), ["pgd10x12"], fast=False)
    monkeypatch.setattr(accuracy, "fast_copy", lambda model, compiled: Wrong(model))
    monkeypatch.setattr(accuracy, "same_function", lambda *_: True)
    found = evaluate(model, (X, y), Linf(1e-4), ["pgd10x12"])
    assert found.settings["pgd10x12"]["copy"]["differed"] == [0, 3, 6, 9]
    assert torch.equal(found.predictions["pgd10x12"], plain.predictions["pgd10x12"])


def test_a_compiled_copy_is_compiled_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond eight times torch no longer compiles, and AutoAttack's batches shrink with every lost image."""
    counter = CompileCounter()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counter))
    model = randomised(models.create("preactresnet18", 4, width=4))
    copied = fast_copy(model, compiled=True)
    assert copied is not None
    for count, order in itertools.product((20, 1, 7, 2, 17), (torch.channels_last, torch.contiguous_format)):
        x = torch.cat((X, X))[:count].contiguous(memory_format=order)
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode():
                torch.testing.assert_close(copied(x), model(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(*(_gradient(each, x) for each in (copied, model)), rtol=1e-4, atol=1e-4)
    assert 1 <= counter.frame_count <= 6


def _gradient(model: nn.Module, x: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(model(leaf).square().sum(), leaf)[0]
