"""The paper's theory: on a smooth model, on a loss that is exactly quadratic, and with rectifiers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sora import probes
from sora._files import plain
from sora._passes import cross_entropy
from sora.errors import UserError
from sora.probes import theory
from sora.threat import L2, Linf, Threat

from .toys import THREAT, images, measure, smooth


class Quadratic(nn.Module):
    """The cross-entropy of class 0 is `5 + b.x + x.Ax/2`, exactly: logits 0 and the inverse of softplus."""

    def __init__(self, b: Tensor, a: Tensor) -> None:
        super().__init__()
        self.b, self.a = nn.Parameter(b), nn.Parameter(a)

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1)
        loss = 5 + z @ self.b + ((z @ self.a) * z).sum(1) / 2
        return torch.stack((torch.zeros_like(loss), loss.expm1().log()), 1)


def curved_down() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A quadratic that peaks inside the range, and images of class 0 with different slopes."""
    generator = torch.Generator().manual_seed(0)
    b = 0.1 + torch.rand(16, generator=generator)
    a = -1.5 * torch.eye(16) + 0.02 * torch.ones(16, 16)
    x = 0.05 * torch.rand(10, 1, 4, 4, generator=generator)
    return Quadratic(b, a), (x, torch.zeros(10, dtype=torch.int64))


@pytest.mark.parametrize("threat", [THREAT, L2(0.5)])
def test_both_lemmas_hold_on_a_smooth_model(threat: Threat) -> None:
    result = measure("curvature", smooth(), images(20), threat)
    assert set(result["numbers"]) == {"pertalign", "gradalign", "linearity", "altpertalign"}
    assert 0.5 < result["numbers"]["pertalign"] <= 1
    lemma = result["lemma"]
    assert lemma[-1]["step"] == threat.eps / 4096
    assert lemma[-1]["misalignment"] == pytest.approx([1, 1, 1], abs=0.01)
    assert lemma[-1]["bend"] == pytest.approx([1, 1, 1], abs=0.01)
    errors = [abs(row["misalignment"][1] - 1) for row in lemma]
    assert errors[-1] < errors[0]  # less accurate for long steps


@pytest.mark.parametrize("threat", [THREAT, L2(0.5)])
def test_alt_pert_align_follows_its_proof_on_a_smooth_model(threat: Threat) -> None:
    shortest = measure("curvature", smooth(), images(20), threat)["lemma"][-1]
    assert shortest["altpertalign"] == pytest.approx([1, 1, 1], abs=0.01)
    assert shortest["altpertalign_printed_sign"] == pytest.approx([-1, -1, -1], abs=0.01)


def test_lemmas_hold_from_a_noisy_start() -> None:
    x, y = images(20)
    noise = THREAT.random_start(x, torch.Generator().manual_seed(5))
    shortest = measure("curvature", smooth(), (THREAT.clamp(x + noise), y))["lemma"][-1]
    assert shortest["misalignment"] == pytest.approx([1, 1, 1], abs=0.01)
    assert shortest["altpertalign"] == pytest.approx([1, 1, 1], abs=0.01)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Softplus, nn.GELU])
def test_the_bound_holds_for_short_steps_on_a_smooth_model(activation: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 32), activation(), nn.Linear(32, 5))
    shortest = measure("curvature", model, images(20))["lemma"][-1]["bound"]
    assert shortest["holds"] == shortest["holds_loose"] == 1
    assert all(0 < part <= 1 for part in shortest["used"])


def test_rectifiers_break_the_bound_and_never_curve_down_between_their_kinks() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 400), nn.ReLU(), nn.Linear(400, 5))
    result = measure("curvature", model, images(20))
    shares = [row["bound"]["holds"] for row in result["lemma"]]
    assert min(shares) < 0.5
    assert all(0 <= value <= 1 for value in shares)
    assert result["peak"]["images_curved_down_at_x"] == 0  # J^T S J with the softmax's S, which is psd


def test_the_spectral_norm_is_that_of_the_full_hessian() -> None:
    model, (x, y) = smooth().double(), images(4)
    local = theory.second_order(model, x.double(), y, THREAT, seed=0)
    for image, label, norm in zip(x.double(), y, local.norm, strict=True):

        def loss(z: Tensor, label: Tensor = label) -> Tensor:
            return cross_entropy(model(z.view(1, 1, 4, 4)), label.view(1))

        full = torch.autograd.functional.hessian(loss, image.flatten())
        assert norm.item() == pytest.approx(torch.linalg.matrix_norm(full, 2).item(), rel=0.01)


def test_on_a_quadratic_alpha_star_is_the_peak_whatever_the_step() -> None:
    model, data = curved_down()
    result = measure("curvature", model, data, Linf(0.5))
    for row in result["lemma"]:
        assert row["bend"] == pytest.approx([1, 1, 1], abs=1e-6)
        assert row["alpha_star"] == pytest.approx(result["lemma"][0]["alpha_star"], rel=1e-5)
        assert row["agrees_with_first_peak"] == 1
    peak = result["peak"]
    assert peak["images_curved_down_at_x"] == peak["images_with_peak_inside"] == 10
    assert peak["images_with_peak_inside_that_agree"] == 10
    assert peak["agree"]["first_peak"] == peak["agree"]["highest_point"] == 1
    # Four lengths per doubling.
    assert peak["images"]["highest_point"] == pytest.approx(peak["images"]["alpha_star"], rel=0.1)
    mean = peak["mean_loss"]
    assert mean["highest_point"] == pytest.approx(mean["alpha_star"], rel=0.1)


def test_on_a_linear_loss_the_peak_is_the_longest_step() -> None:
    result = measure("curvature", Quadratic(torch.ones(16), torch.zeros(16, 16)), curved_down()[1])
    assert result["peak"]["images"]["alpha_star"] == pytest.approx([2 * THREAT.eps] * 10)
    assert result["peak"]["images_with_peak_inside"] == 0
    assert result["peak"]["agree"]["first_peak"] == 1


def test_first_peaks_are_before_the_first_fall() -> None:
    lengths = torch.tensor([1.0, 2.0, 3.0, 4.0])
    curves = torch.tensor([[1.0, 2.0, 1.0, 9.0], [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]])
    assert theory.first_peaks(lengths, curves.T).tolist() == [2, 4, 1]


def test_a_model_without_gradients_has_a_picture_and_eps_zero_is_refused(tmp_path: Path) -> None:
    model = smooth()
    with torch.no_grad():
        model[3].weight.zero_()
    probe = probes.create("curvature")
    result = plain(measure("curvature", model, images()))
    assert "nan" in probe.sentence(result)
    probe.picture({"one": result}, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
    with pytest.raises(UserError, match="eps is 0"):
        measure("curvature", smooth(), images(), Linf(0))
