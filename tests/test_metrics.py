"""What holds for every metric, one row here for each; and their definitions."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sora import metrics
from sora.errors import UserError
from sora.threat import L2, Linf, Threat

THREAT = Linf(0.1)


class Row(NamedTuple):
    name: str
    low: float  # range of values
    high: float
    forwards: int  # passes over the batch that it makes alone


TABLE = [
    Row("gradalign", -1, 1, 2),
    Row("pertalign", -1, 1, 2),
    Row("altpertalign", -torch.inf, torch.inf, 2),
    Row("linearity", -torch.inf, torch.inf, 2),
    Row("fgsm", 0, 1, 2),
    Row("pgd", 0, 1, 11),
    Row("aae", 0, 1, 2),
    Row("kl", 0, torch.inf, 2),
    Row("elle", 0, torch.inf, 3),
]


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(0.5), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 36, 10))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(12, 1, 8, 8, generator=generator), torch.arange(12) % 10


def test_the_table_has_every_metric() -> None:
    assert [row.name for row in TABLE] == metrics.names()


@pytest.mark.parametrize("threat", [THREAT, L2(0.5)], ids=["linf", "l2"])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_range_passes_and_independence(row: Row, threat: Threat) -> None:
    """A metric has the same value alone and beside the others, and makes no more passes than it needs."""
    model, calls = small(), []
    x, y = batch()
    model.register_forward_hook(lambda *_: calls.append(1))
    alone = metrics.measure(model, x, y, threat, (row.name,))
    assert len(calls) == row.forwards
    assert row.low <= alone[row.name] <= row.high
    assert metrics.measure(model, x, y, threat)[row.name] == alone[row.name]


def test_the_documentation_names_every_metric() -> None:
    page = (Path(__file__).parents[1] / "docs" / "probes.md").read_text()
    assert [name for name in metrics.names() if f"`{name}`" not in page] == []


def test_measuring_leaves_model_mode_flags_buffers_and_random_state_unchanged() -> None:
    model, (x, y) = small().train(), batch()
    model[0].bias.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    stream = torch.get_rng_state()
    first = metrics.measure(model, x, y, THREAT)
    assert torch.equal(stream, torch.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()] == [True, False, True, True, True, True]
    assert all(p.grad is None for p in model.parameters())
    assert metrics.measure(model, x, y, THREAT) == first


def test_metrics_follow_their_definitions() -> None:
    model, (x, y) = small().eval(), batch()
    values = metrics.measure(model, x, y, THREAT)
    leaf = x.clone().requires_grad_()
    F.cross_entropy(model(leaf), y).backward()
    assert leaf.grad is not None
    x_adv = (x + 0.1 * leaf.grad.sign()).clamp(0, 1)
    with torch.no_grad():
        clean, adversarial = model(x), model(x_adv)
    losses = [F.cross_entropy(logits, y, reduction="none") for logits in (clean, adversarial)]
    p, q = clean.softmax(1), adversarial.softmax(1)
    assert values["aae"] == pytest.approx((losses[0] > losses[1]).float().mean().item())
    assert values["kl"] == pytest.approx((p * (p / q).log()).sum(1).mean().item(), rel=1e-4)
    assert values["fgsm"] == pytest.approx((adversarial.argmax(1) == y).float().mean().item())
    other = x_adv.clone().requires_grad_()
    F.cross_entropy(model(other), y).backward()
    assert other.grad is not None
    cosine = F.cosine_similarity(leaf.grad.flatten(1) * 1e3, other.grad.flatten(1) * 1e3)
    assert values["pertalign"] == pytest.approx(cosine.mean().item(), abs=1e-5)


def test_a_linear_model_has_no_curvature() -> None:
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), batch()
    values = metrics.measure(model, x, y % 2, THREAT, ("gradalign", "pertalign", "elle", "aae"))
    assert values["gradalign"] == pytest.approx(1, abs=1e-5)
    assert values["pertalign"] == pytest.approx(1, abs=1e-5)
    assert values["aae"] == 0
    assert 0 <= values["elle"] < 1e-2


def test_bad_inputs_are_refused() -> None:
    x, y = batch()
    for wrong, message in (
        ((2 * x - 1, y), "outside the box"),
        (((x * 255).to(torch.uint8), y), "expected floats"),
        ((x, y + 1), "the model has 10 classes"),
        ((x, y.float()), "integers"),
        ((x.flatten(1), y), "does not accept inputs"),
    ):
        with pytest.raises(UserError, match=message):
            metrics.measure(small(), *wrong, THREAT)


def test_only_the_first_batch_of_a_shape_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check waits for the device, and monitors measure every few steps."""
    model, (x, y), checked = small(), batch(), []
    monkeypatch.setattr("sora._checks.check_inputs", lambda x, *_: checked.append(tuple(x.shape)))
    for count in (12, 12, 7, 12):
        metrics.measure(model, x[:count], y[:count], THREAT, ["pertalign"])
    assert checked == [(12, 1, 8, 8), (7, 1, 8, 8)]
