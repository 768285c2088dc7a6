"""Models with other outputs, losses and targets: equal to the plain path where the task is the same."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sora import attacks, methods, metrics
from sora._task import Task
from sora.errors import UserError
from sora.methods import create
from sora.threat import Linf

from .toys import CLASSES, LINF, MODEL, X, Y, prepared, run

ALL = methods.names()
FREE = [name for name in ALL if not (methods.info(name).needs_classes or methods.info(name).own_targets)]


class Returns(nn.Module):
    """A model whose output is wrapped by a function."""

    def __init__(self, inner: nn.Module, wrap: Any) -> None:
        super().__init__()
        self.inner, self.wrap = inner, wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.inner(x))


def head(outputs: int, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, outputs)).double()


def ran(name: str, model: nn.Module, y: Tensor = Y, x: Tensor = X, **options: Any) -> Any:
    torch.manual_seed(0)
    method = prepared(name, shape=tuple(x.shape[1:]), model=model, **options)
    torch.manual_seed(0)
    return run(method, model, x, y)


def assert_equal(one: Any, other: Any) -> None:
    for field in ("loss", "accuracy", "pert_align", "linearity", "step_size", "x_adv"):
        a, b = getattr(one[0], field), getattr(other[0], field)
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert len(one[1]) == len(other[1]) > 0
    for a, b in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_outputs_are_recognised_by_every_method(name: str) -> None:
    plain = ran(name, MODEL)
    for wrap, options in (
        (lambda z: SimpleNamespace(logits=z), {}),
        (lambda z: {"features": z + 1, "scores": z}, {"outputs": lambda out: out["scores"]}),
    ):
        assert_equal(plain, ran(name, Returns(MODEL, wrap), **options))


@pytest.mark.parametrize("wrap", [lambda z: (z, z + 1), lambda z: {"logits": z, "a": z}, lambda z: {"b": z}])
def test_tuples_and_dicts_are_recognised(wrap: Any) -> None:
    assert_equal(ran("sora", MODEL), ran("sora", Returns(MODEL, wrap)))


@pytest.mark.parametrize("name", FREE)
def test_a_loss_of_ones_own_and_one_logit_are_the_plain_path(name: str) -> None:
    own = {
        "loss": lambda z, y: F.cross_entropy(z, y, reduction="none"),
        "correct": lambda z, y: z.argmax(1) == y,
    }
    assert_equal(ran(name, MODEL), ran(name, MODEL, **own))
    one, labels = head(1), Y % 2
    two = Returns(one, lambda z: torch.cat((torch.zeros_like(z), z), 1))
    expected = ran(name, two, labels)
    assert_equal(expected, ran(name, one, labels, loss="binary"))
    assert_equal(expected, ran(name, one, labels[:, None].double(), loss="multi-label"))


class UNet(nn.Module):
    """From images to an image of logits, with one skip connection."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down, self.up = nn.Conv2d(2, 4, 3, 2, 1), nn.ConvTranspose2d(4, 4, 2, 2)
        self.last = nn.Conv2d(6, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat((x, self.up(self.down(x).tanh())), 1))


def pixels(z: Tensor, mask: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(z, mask, reduction="none").flatten(1).mean(1)


@pytest.mark.parametrize("name", FREE)
def test_other_tasks_run(name: str) -> None:
    """Several labels, a mask of pixels with a loss of one's own, a table without a box."""
    labels = torch.stack((Y % 2, Y // 2, Y % 3 // 2), 1)
    own = {
        "loss": pixels,
        "correct": lambda z, mask: ((z > 0) == (mask > 0.5)).flatten(1).float().mean(1) > 0.5,
    }
    table = torch.randn(6, 7, generator=torch.Generator().manual_seed(0)) * 3
    mlp = nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    for out, gradients in (
        ran(name, head(3), labels, loss="multi-label"),
        ran(name, UNet().double(), (X[:, :1] > 0.5).double(), **own),
        ran(name, mlp, Y, table, threat=Linf(0.1, box=None)),
    ):
        assert out.loss.isfinite()
        assert 0 <= out.accuracy <= 1
        assert out.pert_align.isfinite() or not methods.info(name).has_pert_align or name == "free"
        assert any((gradient != 0).any() for gradient in gradients)


def test_without_correct_there_is_no_accuracy() -> None:
    out, _ = ran("sora", MODEL, loss=lambda z, y: z.square().sum(1))
    assert out.accuracy.isnan()
    with pytest.raises(UserError, match="fgsm-ckpt looks for wrong answers: pass correct="):
        ran("fgsm-ckpt", MODEL, loss=lambda z, y: z.square().sum(1))


def test_class_weights_scale_the_loss_of_each_example() -> None:
    out, _ = ran("fgsm", MODEL, class_weights=[1.0, 0.0, 2.0])
    plain, _ = ran("fgsm", MODEL)
    losses = F.cross_entropy(plain.logits, Y, torch.tensor([1.0, 0.0, 2.0]).double(), reduction="none")
    ours = F.cross_entropy(out.logits, Y, torch.tensor([1.0, 0.0, 2.0]).double(), reduction="none").mean()
    torch.testing.assert_close(out.loss, ours)
    assert losses.mean() <= ours + 1e-9  # its attack is against this loss
    torch.testing.assert_close(ran("fgsm", MODEL, class_weights=[1, 1, 1])[0].loss, plain.loss)


@pytest.mark.parametrize("name", [name for name in ALL if name not in FREE])
def test_methods_that_need_classes_say_so(name: str) -> None:
    with pytest.raises(UserError, match=f"^{name} needs class probabilities: loss='cross-entropy', not 'bin"):
        create(name, LINF, loss="binary")


def test_attacks_and_metrics_that_need_classes_say_so() -> None:
    task = Task("multi-label")
    for name in ("aa", "apgd-ce", "square"):
        with pytest.raises(UserError, match=f"^{name} needs class probabilities"):
            attacks.create(name).for_task(task)
    with pytest.raises(UserError, match="metric kl needs class probabilities"):
        metrics.measure(head(3), X, (X[:, 0, 0, :3] > 0.5).long(), LINF, ["kl"], task=task)
    found = metrics.measure(
        head(3), X, (X[:, 0, 0, :3] > 0.5).long(), LINF, ["pertalign", "pgd", "elle"], task=task
    )
    assert -1 <= found["pertalign"] <= 1


BAD = {
    "scalar": ({"loss": F.cross_entropy}, MODEL, Y, r"loss returns shape \(\); expected one value"),
    "number": ({"loss": lambda z, y: 1.0}, MODEL, Y, "loss returns a float; expected one value"),
    "infinite": (
        {"loss": lambda z, y: z.sum(1) * 0 - torch.inf}, MODEL, Y, "returns -inf for 6 of 6 examples",
    ),
    "no gradient": ({"loss": lambda z, y: z.detach().sum(1)}, MODEL, Y, "has no gradient"),
    "missing": ({"outputs": lambda out: out["m"]}, Returns(MODEL, lambda z: {"a": z}), Y, "with a: KeyErr"),
    "unknown": ({}, Returns(MODEL, lambda z: {"a": z, "b": z}), Y, "returns a dict with a, b; outputs"),
    "no tensor": ({"outputs": lambda out: None}, MODEL, Y, "outputs returns a NoneType; outputs=fn must"),
    "one logit": ({}, head(1), Y % 2, "one logit: use loss='binary' or two logits"),
    "two logits": ({"loss": "binary"}, head(2), Y % 2, "loss='binary' expects one logit per example"),
    "labels": ({"loss": "binary"}, head(1), Y, "values outside 0 to 1; loss='binary' expects 0 or 1"),
    "rows": ({}, MODEL, torch.zeros(6, 3), "multi-label targets need loss='multi-label'"),
    "floats": ({}, MODEL, torch.zeros(6), "expected 6 integers; 0 or 1 as a number needs loss='binary'"),
    "shape": ({"loss": "multi-label"}, head(2), torch.zeros(6, 3), "expects \\(batch, labels\\) of both"),
    "list": ({"loss": "multi-label"}, head(2), [[0, 1]] * 6, "labels are list; expected a torch.Tensor"),
    "correct": ({"correct": lambda z, y: z}, MODEL, Y, r"correct returns shape \(6, 3\)"),
    "no bool": ({"correct": lambda z, y: z[:, 0]}, MODEL, Y, "correct returns torch.float64; expected bool"),
    "weights": ({"class_weights": [1, 2]}, MODEL, Y, "2 class_weights; the model has 3 classes"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_loss_output_or_target_is_one_line(case: str) -> None:
    options, model, y, message = BAD[case]
    with pytest.raises(UserError, match=message) as caught:
        create("sora", LINF, **options).step(model, X, y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "mse"}, "loss is 'mse'; .*allowed: cross-entropy, binary, multi-label, a function"),
        ({"outputs": "logits"}, "outputs is 'logits'; expected a function"),
        ({"class_weights": [1, -1]}, "expected numbers from 0"),
        ({"class_weights": [1, 1], "loss": "binary"}, "with loss='cross-entropy'"),
        ({"smoothing": 0.1, "loss": "binary"}, "label smoothing needs class probabilities"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        create("sora", LINF, **options)
