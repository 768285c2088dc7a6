"""What an attack may not do unnoticed: meet NaN gradients, leave the ball or the box, change its inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sora import evaluate
from sora._passes import cross_entropy, gradient_of
from sora.attacks import Attack, create, create_all
from sora.errors import RunError, UserError
from sora.evaluation import warnings_about
from sora.evaluation.records import evaluate_into
from sora.evaluation.validity import AttackFailed
from sora.runs import RunFolder
from sora.threat import L2, Linf, Threat

torch.set_num_threads(1)


class Linear(nn.Module):
    """A linear classifier; subclasses change what happens to its input or output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(75, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))  # type: ignore[no-any-return]


class NaNGradient(Linear):
    """The same logits with a gradient that is NaN: the square root of 0 has an infinite slope, times 0."""

    def forward(self, x: Tensor) -> Tensor:
        zero = (x - x.detach()).square().sum((1, 2, 3)).sqrt()
        return super().forward(x) + zero[:, None]


def examples(n: int = 30) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    return x, Linear()(x).argmax(1)


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.5)], ids=["linf", "l2"])
@pytest.mark.parametrize("attack", ["fgsm", "pgd3x2", "apgd-ce", "fab-t"])
def test_a_result_with_gradients_that_are_not_finite_is_void(attack: str, threat: Threat) -> None:
    result = evaluate(NaNGradient(), examples(), threat, f"clean,{attack}")
    assert result.accuracy == {"clean": 1.0}
    assert "NaN or infinite" in result.void[attack]
    assert any(attack in text and "void" in text for text in warnings_about(result))
    assert attack in repr(result)
    with pytest.raises(UserError, match="its result is void"):
        evaluate(NaNGradient(), examples(), threat, attack)
    assert evaluate(Linear(), examples(), threat, f"clean,{attack}").void == {}


def test_autoattack_with_a_void_part_is_void_and_recorded_as_such(tmp_path: Path) -> None:
    folder, attacks = RunFolder(tmp_path), create_all("clean,aa")
    evaluate_into(folder, NaNGradient(), examples(6), [Linf(0.1)], attacks[:1])
    (result,) = evaluate_into(folder, NaNGradient(), examples(6), [Linf(0.1)], attacks)
    (record,) = folder.read_evaluations()
    assert list(result.accuracy) == list(record["accuracy"]) == ["clean"]
    assert list(result.void) == list(record["void"]) == ["aa"]


@dataclass(frozen=True)
class Shift(Attack):
    """Adds a number to every pixel, without asking whether it may."""

    by: float = 0.0

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        return x + self.by


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.1 * 75**0.5)], ids=["linf", "l2"])
def test_an_attack_that_leaves_the_ball_is_an_error(threat: Threat) -> None:
    x, y = examples()
    pair = (0.2 + 0.5 * x, y)
    assert evaluate(Linear(), pair, threat, [Shift("shift", 0.1)]).accuracy
    with pytest.raises(RunError, match="shift left the ball"):
        evaluate(Linear(), pair, threat, [Shift("shift", 0.1003)])


def test_an_attack_that_leaves_the_box_or_the_shape_is_an_error() -> None:
    with pytest.raises(RunError, match="shift left the box"):
        evaluate(Linear(), examples(), Linf(0.1), [Shift("shift", 0.05)])
    with pytest.raises(RunError, match="NaN or infinite"):
        evaluate(Linear(), examples(), Linf(0.1), [Shift("shift", torch.nan)])

    class Half(Shift):
        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
            return x[:1]

    with pytest.raises(RunError, match=r"expected inputs of shape \(30, 3, 5, 5\)"):
        evaluate(Linear(), examples(), Linf(0.1), [Half("half")])


def test_an_input_changed_through_data_is_noticed() -> None:
    class Quantised(Linear):
        def forward(self, x: Tensor) -> Tensor:
            x.data.mul_(4).round_().div_(4)
            return super().forward(x)

    x, y = examples()
    with pytest.raises(UserError, match="changes its input in place"):
        evaluate(Quantised(), (x.clone(), y), Linf(0.1), "clean")


def test_weights_that_change_during_an_evaluation_are_noticed(tmp_path: Path) -> None:
    class Drifting(Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.layer.bias.data.add_(0.01)
            return super().forward(x)

    with pytest.raises(UserError, match="changes its own weights"):
        evaluate_into(RunFolder(tmp_path), Drifting(), examples(), [Linf(0.1)], create_all("clean"))
    assert RunFolder(tmp_path).read_evaluations() == []


@pytest.mark.parametrize("attacks", ["clean,fgsm,pgd3x2", pytest.param("aa", marks=pytest.mark.slow)])
def test_float64_is_supported(attacks: str) -> None:
    x, y = examples(8)
    single = evaluate(Linear(), (x, y), Linf(0.02), attacks)
    for model, inputs in ((Linear().double(), x), (Linear(), x.double()), (Linear().double(), x.double())):
        assert evaluate(model, (inputs, y), Linf(0.02), attacks).accuracy == single.accuracy


@pytest.mark.parametrize("squash", [torch.sigmoid, torch.exp, lambda z: z.softmax(1) * 7])
def test_outputs_like_probabilities_are_noticed(squash: object) -> None:
    class Squashed(Linear):
        def forward(self, x: Tensor) -> Tensor:
            return squash(super().forward(x))  # type: ignore[operator,no-any-return]

    result = evaluate(Squashed(), examples(), Linf(0.1), "clean")
    assert any("no output of the model is negative" in text for text in warnings_about(result))
    assert warnings_about(evaluate(Linear(), examples(), Linf(0.1), "clean")) == []


def test_a_constant_predictor_is_not_robust() -> None:
    class Constant(Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 0 * super().forward(x) + torch.arange(5.0) - 2

    x, y = examples()
    result = evaluate(Constant(), (x, torch.arange(30) % 5), Linf(0.1), "clean,fgsm,pgd10")
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
    assert [list(each.accuracy) for each in caught.value.finished] == [
        list(small["accuracy"]),
        list(large["accuracy"]),
    ]
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
    class NaNFarAway(Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + (torch.nan if float(x.detach().max()) > 1.05 else 0.0) * x.sum()

    x, y = examples()
    threats = [Linf(eps, box=None) for eps in (0.02, 0.2, 0.03)]
    with pytest.raises(AttackFailed, match=r"linf eps 0\.2: ") as caught:
        evaluate_into(RunFolder(tmp_path), NaNFarAway(), (x, y), threats, create_all("pgd3"))
    assert [each.threat.eps for each in caught.value.finished] == [0.02, 0.03]


@pytest.mark.parametrize("name", ["mine[1]", "mine/2", ""])
def test_names_that_cannot_name_a_file_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="allowed: letters, digits"):
        create_all([OneStep(name)])


def test_two_attacks_of_one_name_are_refused() -> None:
    assert len(create_all([OneStep("mine"), OneStep("mine")])) == 1
    with pytest.raises(UserError, match="two different attacks are called mine"):
        create_all([OneStep("mine"), OneStep("mine", mistaken=True)])
