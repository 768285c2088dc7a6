"""AutoAttack's own alarms, raised as warnings of an evaluation: random, dynamic, Square, zero gradients."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from sora import evaluate
from sora.attacks import Attack, create
from sora.evaluation import Evaluation, warnings_about
from sora.evaluation.records import full_record, restore
from sora.threat import Linf, Threat

torch.set_num_threads(1)

LABELS = torch.arange(100) % 4


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(12, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x.flatten(1))
        return logits


class Random(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.01 * torch.randn_like(x))


class Purifying(Linear):
    """Moves its input along a gradient before it classifies it."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(super().forward(leaf).logsumexp(1).sum(), leaf)
        return super().forward(x - 0.01 * gradient)


class Counting(Linear):
    """Changes a buffer in every pass."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


def data(n: int = 20) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 3, 2, 2, generator=torch.Generator().manual_seed(0)), LABELS[:n]


def about(model: nn.Module, attacks: str = "clean") -> str:
    evaluation = evaluate(model, data(), Linf(0.1), attacks)
    restored = restore(full_record(evaluation), evaluation.labels, evaluation.threat)
    assert warnings_about(restored) == warnings_about(evaluation)
    return "; ".join(warnings_about(evaluation))


def test_a_random_model_is_named_unless_an_attack_averages_gradients() -> None:
    assert "the model is random" in about(Random())
    assert "the model is random" not in about(Random(), "clean,pgd2@eot2")
    assert "random" not in about(Linear())


@pytest.mark.parametrize("model", [Purifying(), Counting()], ids=["gradients", "buffers"])
def test_a_dynamic_model_is_named(model: nn.Module) -> None:
    assert "dynamic defences" in about(model)


def test_an_ordinary_model_is_not_dynamic() -> None:
    assert "dynamic" not in about(Linear())


@dataclass(frozen=True)
class InTurn(Attack):
    """FGSM at a tenth of the radius, then PGD on what is left."""

    @property
    def parts(self) -> tuple[Attack, ...]:
        return (Tenth("tenth"), create("pgd5"))

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Tenth(Attack):
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        return create("fgsm")(model, x, y, threat.scaled(0.1), seed)


def test_what_each_part_broke_is_counted() -> None:
    model, (x, _) = Linear(), data(100)
    with torch.no_grad():
        y = model(x).argmax(1)
    evaluation = evaluate(model, (x, y), Linf(0.2), ["clean", InTurn("in-turn")])
    broken = evaluation.attacks["in-turn"]["broken"]
    assert list(broken) == ["tenth", "pgd5"]
    assert min(broken.values()) > 0
    assert sum(broken.values()) == 100 - int(evaluation.robust["in-turn"].sum())


def evaluation_of(broken_by_square: int, n: int = 100) -> Evaluation:
    labels = LABELS[:n]
    after = labels.clone()
    after[:broken_by_square] = (after[:broken_by_square] + 1) % 4
    plain = create("clean").settings(Linf(0.1))
    settings = {"aa": plain | {"broken": {"apgd-ce": 0, "square": broken_by_square}}}
    return Evaluation(Linf(0.1), labels, 4, {"aa": after}, settings)


def test_square_below_the_gradient_attacks_is_named_beyond_noise() -> None:
    assert any("Square" in text for text in warnings_about(evaluation_of(5)))
    assert not any("Square" in text for text in warnings_about(evaluation_of(1)))
    assert not warnings_about(evaluation_of(0))
    assert not any("Square" in text for text in warnings_about(evaluation_of(1, n=20)))
    assert any("Square" in text for text in warnings_about(evaluation_of(2, n=20)))


def test_square_on_its_own_is_compared_with_gradient_attacks_image_by_image() -> None:
    right, wrong = LABELS.clone(), (LABELS + 1) % 4
    settings = {name: create("clean").settings(Linf(0.1)) for name in ("pgd10", "square")}
    masked = Evaluation(Linf(0.1), LABELS, 4, {"pgd10": right, "square": wrong}, settings)
    assert any("Square" in text for text in warnings_about(masked))
    both = Evaluation(Linf(0.1), LABELS, 4, {"pgd10": wrong, "square": wrong}, settings)
    assert not any("Square" in text for text in warnings_about(both))


@pytest.mark.parametrize(("share", "warned"), [(0.09, False), (0.1, True), (0.5, True)])
def test_zero_gradients_are_named_from_a_tenth(share: float, warned: bool) -> None:
    settings = {"clean": create("clean").settings(Linf(0.1))}
    evaluation = Evaluation(Linf(0.1), LABELS, 4, {"clean": LABELS}, settings, zero_gradients=share)
    assert bool(warnings_about(evaluation)) == warned
