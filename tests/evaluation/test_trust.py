"""Every planted fraud is caught by the masking tests, no honest model is accused, and the cost is bounded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sora
from sora import data, evaluate
from sora.attacks import pgd
from sora.cli import main
from sora.evaluation import Evaluation, EvaluationOptions
from sora.evaluation.examples import as_examples
from sora.evaluation.trust import TESTS, masking_tests
from sora.threat import L2, Linf, Threat

torch.set_num_threads(1)

EPS = 0.15
Images = tuple[Tensor, Tensor]


def images(count: int, *, train: bool) -> Images:
    """Digits of 8x8 pixels."""
    dataset = data.load("digits")
    chosen = dataset.train if train else dataset.test
    positions = torch.arange(count)
    return chosen.gather(positions).float().div(255)[:, :, ::2, ::2].contiguous(), chosen.labels[positions]


def trained(steps: int, adversarial: bool) -> nn.Module:
    """An honest model."""
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    second = [nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    model = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(512, 10))
    x, y = images(1000, train=True)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        inputs = pgd(model, x[rows], y[rows], Linf(EPS), 3, EPS / 2) if adversarial else x[rows]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), y[rows]).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="session")
def robust() -> nn.Module:
    return trained(70, adversarial=True)


@pytest.fixture(scope="session")
def ordinary() -> nn.Module:
    return trained(60, adversarial=False)


@pytest.fixture(scope="session")
def test_images() -> Images:
    return images(128, train=False)


class Around(nn.Module):
    """Hides the gradients of an honest model by what happens before it or after it."""

    def __init__(
        self,
        model: nn.Module,
        before: Callable[[Tensor], Tensor] = lambda x: x,
        after: Callable[[Tensor], Tensor] = lambda logits: logits,
    ) -> None:
        super().__init__()
        self.model, self.before, self.after = model, before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.model(self.before(x)))


class AlwaysTraining(Around):
    """Its modules ignore eval(): BatchNorm uses the statistics of the batch."""

    def train(self, mode: bool = True) -> AlwaysTraining:
        super().train(True)
        return self


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)


def quantised_input(model: nn.Module) -> nn.Module:
    """Rounding to 8 bits has a gradient of zero."""
    return Around(model, before=lambda x: (x * 255).round() / 255)


def reverse_clean(x: Tensor) -> Tensor:
    """Turn the gradient around at images of 8 bits; elsewhere, as at a random start, it is the true one.

    This is what catastrophic overfitting amounts to, without the training that leads there.
    """
    levels = 255 * x
    clean = ((levels - levels.round()).abs() < 1e-3).flatten(1).float().mean(1) > 0.9
    return torch.where(clean[:, None, None, None], 2 * x.detach() - x, x)


FRAUDS: dict[str, tuple[Callable[[nn.Module], nn.Module], set[str]]] = {
    "scaled logits": (  # softmax saturates
        lambda model: Around(model, after=lambda logits: 1e4 * logits),
        {"zero gradients", "rising loss", "smoothed transfer"},
    ),
    "quantised input": (quantised_input, {"zero gradients", "smoothed transfer", "square", "large eps"}),
    "random layer": (
        lambda model: Around(model, before=lambda x: x + 0.1 * torch.randn_like(x)),
        {"repeated pass"},
    ),
    "saturated softmax": (  # sharp probabilities, shifted so that they do not look like ones
        lambda model: Around(model, after=lambda z: 10 * (100 * z).softmax(1) - 5),
        {"zero gradients"},
    ),
    "zero-gradient stem": (
        lambda model: Around(model, before=NoGradient.apply),
        {"zero gradients", "square", "large eps"},
    ),
    "training mode": (AlwaysTraining, {"evaluation mode", "other batch"}),
    "like overfitted": (lambda model: Around(model, before=reverse_clean), {"single step"}),
}
"""Frauds, with tests that must be among those that each fails around an ordinary model."""
BEHIND_THE_MASK = {"smoothed transfer", "square", "large eps", "single step"}
"""Tests that a fraud around a robust model may pass: attacks without its gradients break little."""


def judge(model: nn.Module, images: Images, threat: Threat | None = None) -> Evaluation:
    return evaluate(model, images, threat or Linf(EPS), "clean,fgsm,pgd10", trust=True)


def failed(evaluation: Evaluation) -> set[str]:
    return {finding.test for finding in evaluation.failed_tests}


@pytest.mark.parametrize("threat", [Linf(EPS), L2(1.0)], ids=["linf", "l2"])
@pytest.mark.parametrize("name", ["robust", "ordinary"])
def test_honest_models_are_not_accused(name, threat, test_images, request) -> None:
    evaluation = judge(request.getfixturevalue(name), test_images, threat)
    assert failed(evaluation) == set()
    assert evaluation.accuracy["clean"] > 0.7
    assert evaluation.verdict == replace(evaluation, trust=[]).verdict
    assert [finding.test for finding in evaluation.trust] == [*TESTS]
    assert evaluation.trust[-1].outcome == "not applicable"  # no second model was given


@pytest.mark.parametrize(
    ("fraud", "base"),
    [
        *[(fraud, "ordinary") for fraud in FRAUDS],
        *[(fraud, "robust") for fraud, (_, tests) in FRAUDS.items() if tests - BEHIND_THE_MASK],
    ],
)
def test_frauds_are_caught(fraud, base, test_images, request) -> None:
    make, expected = FRAUDS[fraud]
    evaluation = judge(make(copy.deepcopy(request.getfixturevalue(base))), test_images)
    assert expected - (set() if base == "ordinary" else BEHIND_THE_MASK) <= failed(evaluation)
    assert evaluation.verdict == "overfitted" or fraud != "like overfitted"
    assert evaluation.verdict in ("suspect", "overfitted")
    assert all(finding.advice for finding in evaluation.failed_tests)


@pytest.mark.parametrize("threat", [L2(0.01), Linf(0)], ids=["12x12", "eps 0"])
def test_tests_that_do_not_apply_say_why(threat: Threat) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(432, 5)), torch.rand(8, 3, 12, 12)
    evaluation = evaluate(model, (x, model(x).argmax(1)), threat, "clean", trust=True)
    reasons = {each.test: each.text for each in evaluation.trust if each.outcome == "not applicable"}
    if threat.eps:
        assert "12x12" in reasons["square"]
        assert "rising loss" not in reasons
    else:
        assert {*TESTS} - {*reasons} == {*[*TESTS][:4]}  # those of the forward pass and the gradient
        for test in ("rising loss", "smoothed transfer"):
            assert reasons[test] == "eps is 0: there is nothing to attack"


class Counting(nn.Module):
    """A linear model that counts images: a forward pass is 1, one that will be differentiated 2."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.passes = nn.Linear(75, 5), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += len(x) * (2 if x.requires_grad or torch.is_grad_enabled() else 1)
        logits: Tensor = self.layer(x.flatten(1))
        return logits


def cost(model: Counting, call: Callable[[], object]) -> int:
    before = model.passes
    call()
    return model.passes - before


@pytest.mark.parametrize("n", [128, 512])
@pytest.mark.parametrize("hidden", [False, True], ids=["open", "hidden"])
@pytest.mark.parametrize("second", [False, True], ids=["alone", "second-model"])
def test_the_cost_is_about_twice_that_of_pgd10(n: int, hidden: bool, second: bool) -> None:
    counting = Counting()
    model = quantised_input(counting) if hidden else counting  # hidden: PGD-10 leaves every image
    x = torch.rand(n, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y = counting(x).argmax(1)
    threat, examples = Linf(0.02), as_examples((x, y))
    source = copy.deepcopy(counting) if second else None
    options = EvaluationOptions(trust_source=source)
    pgd10 = cost(counting, lambda: evaluate(model, (x, y), threat, ["pgd10"]))
    trust = cost(counting, lambda: masking_tests(model, examples, threat, torch.device("cpu"), options))
    trust += source.passes if source is not None else 0
    assert n * 21 <= pgd10 <= n * 25
    assert n * 20 <= trust <= 2.1 * pgd10


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sora", "trades", "pgd-10", "n-fgsm", "benign", "fgsm"])
def test_trained_models_are_judged_rightly(method: str, tmp_path: Path) -> None:
    assert main(["train", "--method", method, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    evaluation = judge(sora.load(tmp_path / "run"), sora.data.load("digits").test, Linf("0.15"))
    if method == "fgsm":  # it overfits
        assert "single step" in failed(evaluation)
        assert evaluation.verdict in ("suspect", "overfitted", "not robust")
    else:
        assert failed(evaluation) == set()
        assert evaluation.verdict == ("not robust" if method == "benign" else "robust")
