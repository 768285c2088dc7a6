"""What models and attacks may not do unnoticed: return no logits, meet NaN gradients, leave the ball."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sora import evaluate
from sora._devices import device_for_float64
from sora._passes import cross_entropy, gradient_of
from sora.attacks import Attack, create, create_all
from sora.errors import RunError, UserError
from sora.evaluation.records import evaluate_into, full_record, restore
from sora.evaluation.validity import AttackFailed, relative_difference
from sora.runs import RunFolder
from sora.threat import L2, Linf, Threat
from tests.no_float64 import without_float64

torch.set_num_threads(1)


class Linear(nn.Module):
    """A linear classifier, whose logits and inputs may be combined to other outputs."""

    def __init__(self, output: Callable[[Tensor, Tensor], Any] = lambda z, _: z) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.output = nn.Linear(75, 5), output

    def forward(self, x: Tensor) -> Any:
        return self.output(self.layer(x.flatten(1)), x)


def nan_gradient() -> Linear:
    """The same logits with a gradient that is NaN: the square root of 0 has an infinite slope, times 0."""
    return Linear(lambda z, x: z + (x - x.detach()).square().sum((1, 2, 3)).sqrt()[:, None])


def examples(n: int = 30) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    return x, Linear()(x).argmax(1)


@pytest.mark.usefixtures("short_autoattack")
@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.5)], ids=["linf", "l2"])
@pytest.mark.parametrize("attack", ["fgsm", "pgd3x2", "apgd-ce", "fab-t"])
def test_a_result_with_gradients_that_are_not_finite_is_void(attack: str, threat: Threat) -> None:
    result = evaluate(nan_gradient(), examples(), threat, f"clean,{attack}")
    assert result.accuracy == {"clean": 1.0}
    assert "NaN or infinite" in result.void[attack]
    assert any(attack in text and "void" in text for text in result.warnings)
    assert attack in repr(result)
    with pytest.raises(UserError, match="its result is void"):
        evaluate(nan_gradient(), examples(), threat, attack)
    assert evaluate(Linear(), examples(), threat, f"clean,{attack}").void == {}


def test_autoattack_with_a_void_part_is_void_and_recorded_as_such(tmp_path: Path) -> None:
    folder, attacks = RunFolder(tmp_path), create_all("clean,aa")
    evaluate_into(folder, nan_gradient(), examples(6), [Linf(0.1)], attacks[:1])
    (result,) = evaluate_into(folder, nan_gradient(), examples(6), [Linf(0.1)], attacks)
    (record,) = folder.read_evaluations()
    assert list(result.accuracy) == list(record["accuracy"]) == ["clean"]
    assert list(result.void) == list(record["void"]) == ["aa"]


@dataclass(frozen=True)
class Shift(Attack):
    """Adds a number to every pixel, without asking whether it may."""

    by: float = 0.0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        return x + self.by


class Half(Attack):
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        return x[:1]


@pytest.mark.parametrize(
    ("attack", "threat", "message"),
    [
        (Shift("shift", 0.1), Linf(0.1), None),
        (Shift("shift", 0.1), L2(0.1 * 75**0.5), None),
        (Shift("shift", 0.1003), Linf(0.1), "shift left the ball"),
        (Shift("shift", 0.1003), L2(0.1 * 75**0.5), "shift left the ball"),
        (Shift("shift", 0.4), Linf(0.5), "shift left the box"),
        (Shift("shift", torch.nan), Linf(0.1), "NaN or infinite"),
        (Half("half"), Linf(0.1), r"expected inputs of shape \(30, 3, 5, 5\)"),
    ],
)
def test_an_attack_that_leaves_the_ball_the_box_or_the_shape_is_an_error(attack, threat, message) -> None:
    x, y = examples()
    pair = (0.2 + 0.5 * x, y)
    if message is None:
        assert evaluate(Linear(), pair, threat, [attack]).accuracy
    else:
        with pytest.raises(RunError, match=message):
            evaluate(Linear(), pair, threat, [attack])


def test_an_input_changed_through_data_is_noticed() -> None:
    quantised = Linear(lambda z, x: z + 0 * x.data.mul_(4).round_().div_(4).sum())
    with pytest.raises(UserError, match="changes its input in place"):
        evaluate(quantised, examples(), Linf(0.1), "clean")


def test_weights_that_change_during_an_evaluation_are_noticed(tmp_path: Path) -> None:
    class Drifting(Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.layer.bias.data.add_(0.01)
            return super().forward(x)

    with pytest.raises(UserError, match="changes its own weights"):
        evaluate_into(RunFolder(tmp_path), Drifting(), examples(), [Linf(0.1)], create_all("clean"))
    assert RunFolder(tmp_path).read_evaluations() == []


@pytest.mark.usefixtures("short_autoattack")
@pytest.mark.parametrize("attacks", ["clean,fgsm,pgd3x2", "aa"])
def test_float64_is_supported(attacks: str) -> None:
    x, y = examples(8)
    single = evaluate(Linear(), (x, y), Linf(0.02), attacks)
    for model, inputs in ((Linear().double(), x), (Linear(), x.double()), (Linear().double(), x.double())):
        assert evaluate(model, (inputs, y), Linf(0.02), attacks).accuracy == single.accuracy


def random_model() -> Linear:
    return Linear(lambda z, _: z + 0.01 * torch.randn_like(z))


def purifying() -> Linear:
    """Computes a gradient in its forward pass."""

    def output(z: Tensor, x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(leaf.square().sum(), leaf)
        return z - 0.01 * gradient.flatten(1)[:, :5]

    return Linear(output)


def counting() -> Linear:
    """Changes a buffer in every pass."""
    model = Linear(lambda z, _: z + 0 * calls.add_(1))
    model.register_buffer("calls", calls := torch.zeros(()))
    return model


@pytest.mark.parametrize(
    ("model", "attacks", "message"),
    [
        (Linear, "clean", ""),
        (random_model, "clean", "the model is random"),
        (random_model, "clean,pgd2@eot2", ""),  # it averages gradients
        (purifying, "clean", "dynamic defences"),
        (counting, "clean", "dynamic defences"),
    ],
)
def test_random_and_dynamic_models_are_named(model: Callable[[], Linear], attacks: str, message: str) -> None:
    evaluation = evaluate(model(), examples(), Linf(0.1), attacks)
    warnings = [text for text in evaluation.warnings if "random" in text or "dynamic" in text]
    assert len(warnings) == bool(message)
    assert message in "".join(warnings)
    restored = restore(full_record(evaluation), evaluation.labels, evaluation.threat)
    assert restored.warnings == evaluation.warnings


@pytest.mark.parametrize("squash", [torch.sigmoid, torch.exp, lambda z: z.softmax(1) * 7])
def test_outputs_like_probabilities_are_noticed(squash: Callable[[Tensor], Tensor]) -> None:
    result = evaluate(Linear(lambda z, _: squash(z)), examples(), Linf(0.1), "clean")
    assert any("no output of the model is negative" in text for text in result.warnings)
    assert evaluate(Linear(), examples(), Linf(0.1), "clean").warnings == []


def test_a_constant_predictor_is_not_robust() -> None:
    x, y = examples()
    constant = Linear(lambda z, _: 0 * z + torch.arange(5.0) - 2)
    result = evaluate(constant, (x, torch.arange(30) % 5), Linf(0.1), "clean,fgsm,pgd10")
    assert result.accuracy["pgd10"] == result.accuracy["fgsm"] > 0
    assert result.verdict == "not robust"
    assert replace(result, predictions={**result.predictions, "clean": y}).constant_class is None


def test_an_attack_that_fails_does_not_hide_the_others(tmp_path: Path) -> None:
    x, y = examples()
    attacks = [*create_all("clean"), Shift("shift", 0.2), *create_all("fgsm")]
    with pytest.raises(AttackFailed, match="shift left the ball") as caught:
        evaluate(Linear(), (0.2 + 0.5 * x, y), Linf(0.1), attacks)
    (finished,) = caught.value.finished
    assert list(finished.accuracy) == ["clean", "fgsm"]
    folder, threats = RunFolder(tmp_path), [Linf(0.1), Linf(0.3)]
    with pytest.raises(AttackFailed, match="shift left the ball") as caught:
        evaluate_into(folder, Linear(), (0.2 + 0.5 * x, y), threats, attacks)
    small, large = folder.read_evaluations()
    assert list(small["accuracy"]) == ["clean", "fgsm"]
    assert list(large["accuracy"]) == ["clean", "shift", "fgsm"]
    finished_accuracies = [each.accuracy for each in caught.value.finished]
    assert finished_accuracies == [small["accuracy"], large["accuracy"]]
    with pytest.raises(AttackFailed):  # again, now that the others have a record
        evaluate_into(folder, Linear(), (0.2 + 0.5 * x, y), threats, attacks)


@dataclass(frozen=True)
class OneStep(Attack):
    """FGSM whose loss may be multiplied by NaN, as in code with a mistake."""

    mistaken: bool = False

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        factor = float("nan") if self.mistaken else 1.0
        g, _ = gradient_of(lambda z: factor * cross_entropy(z, y), model, x)
        return threat.step(x, g, threat.eps)


@pytest.mark.parametrize("mistaken_first", [True, False])
def test_an_edited_attack_replaces_its_old_result_void_or_not(tmp_path: Path, mistaken_first: bool) -> None:
    folder = RunFolder(tmp_path)
    for mistaken in (mistaken_first, not mistaken_first):
        attacks = [create("clean"), OneStep("mine", mistaken)]
        for _ in range(2):
            (result,) = evaluate_into(folder, Linear(), examples(), [Linf(0.1)], attacks)
            assert ("mine" in result.void) == mistaken
            assert ("mine" in result.accuracy) != mistaken
        (record,) = folder.read_evaluations()
        assert list(record["void"]) == (["mine"] if mistaken else [])


def test_a_radius_without_any_result_does_not_end_the_others(tmp_path: Path) -> None:
    nan_far_away = Linear(lambda z, x: z + (torch.nan if float(x.detach().max()) > 1.05 else 0.0) * x.sum())
    threats = [Linf(eps, box=None) for eps in (0.02, 0.2, 0.03)]
    with pytest.raises(AttackFailed, match=r"linf eps 0\.2: ") as caught:
        evaluate_into(RunFolder(tmp_path), nan_far_away, examples(), threats, create_all("pgd3"))
    assert [each.threat.eps for each in caught.value.finished] == [0.02, 0.03]


def test_outputs_are_compared_on_a_device_without_float64() -> None:
    a, b = torch.rand(4, 5), torch.rand(4, 5)
    assert relative_difference(without_float64(a), without_float64(b)).equal(relative_difference(a, b))
    assert device_for_float64(torch.device("mps")) == torch.device("cpu")
    assert device_for_float64(torch.device("cuda:1")) == torch.device("cuda:1")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_labels_of_any_integer_type_give_the_same_numbers(dtype: torch.dtype) -> None:
    x, y = examples()
    result = evaluate(Linear(), (x, y.to(dtype)), Linf(0.1), "clean,fgsm")
    expected = evaluate(Linear(), (x, y), Linf(0.1), "clean,fgsm")
    assert result.record() == expected.record()
    assert result.confusion("fgsm").equal(expected.confusion("fgsm"))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z: z.softmax(1), "probabilities"),
        (lambda z: z / (z.sum(1, keepdim=True) * 0), "NaN"),
        (lambda z: torch.where(z > 0, z, torch.nan), "NaN"),
        (lambda z: z[:, 0], "one logit: use loss='binary' or two logits"),
        (lambda z: z[:, :1], "one logit: use loss='binary' or two logits"),
        (lambda z: {"a": z, "b": z}, "a dict with a, b; .*expected logits"),
        (lambda z: z[:, :2], "labels run from 0 to 4, but the model has 2 classes"),
        (lambda z: z.detach(), "cannot be differentiated"),
        (lambda z: z @ torch.ones(4, 3), "does not accept inputs of shape"),
    ],
)
def test_a_model_that_cannot_be_evaluated_is_refused(function: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        evaluate(Linear(lambda z, _: function(z)), examples(), Linf(0.1))
    assert "\n" not in str(caught.value)
