import pytest
import torch

from sora import curvature
from sora.methods import create
from sora.methods.gradalign import misalignment
from sora.threat import Linf

from .toys import ETA, LINF, MODEL, X, Y, gradient_at, run, two_layer


def test_loss_is_cross_entropy_plus_lambda_omega() -> None:
    out, gradients = run(create("gradalign", LINF, lam=2.0), noise=ETA)
    g1, g2 = gradient_at(MODEL, X, Y), gradient_at(MODEL, (X + ETA).clamp(0, 1), Y)
    omega = 1 - curvature.cosine(g1, g2)[0].mean()
    torch.testing.assert_close(out.extras["omega"], omega)
    plain = torch.nn.functional.cross_entropy(MODEL(out.x_adv), Y)
    torch.testing.assert_close(out.loss, plain.detach() + 2.0 * omega)
    _, without = run(create("gradalign", LINF, lam=0), noise=ETA)
    assert max((a - b).abs().max() for a, b in zip(gradients, without, strict=True)) > 1e-6


def test_second_order_gradient_is_the_derivative_of_the_loss_through_g2_alone() -> None:
    model, h = two_layer(), 1e-6
    method = create("gradalign", LINF, lam=3.0, alpha=0)  # alpha 0: x_adv does not move with the weights
    _, gradients = run(method, noise=ETA)
    start = (X + ETA).clamp(0, 1)
    g1 = gradient_at(model, X, Y)  # a constant in the regulariser
    weight, values = model[1].weight, []
    for shift in (h, -2 * h):
        with torch.no_grad():
            weight[0, 0] += shift
        plain = torch.nn.functional.cross_entropy(model(start), Y)
        values.append((plain + 3.0 * misalignment(g1, gradient_at(model, start, Y))).item())
    assert gradients[0][0, 0].item() == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-4)


@pytest.mark.parametrize(("pixels", "expected"), [(4, 0.063), (8, 0.2), (12, 0.632), (16, 2.0)])
def test_lambda_by_radius_gives_the_authors_values(pixels: int, expected: float) -> None:
    def weight(**hyper: str) -> float:
        out, _ = run(create("gradalign", Linf(pixels / 255), **hyper))
        plain = torch.nn.functional.cross_entropy(MODEL(out.x_adv), Y)
        return ((out.loss - plain) / out.extras["omega"]).item()

    assert weight(lambda_rule="eps") == pytest.approx(expected, abs=1e-3)
    assert weight() == pytest.approx(0.2, abs=1e-6)


def test_zero_start_is_plain_fgsm_and_examples_without_gradient_are_left_out() -> None:
    out, _ = run(create("gradalign", LINF, start="zero"), noise=ETA)
    fgsm, _ = run(create("fgsm", LINF))
    torch.testing.assert_close(out.x_adv, fgsm.x_adv, rtol=0, atol=1e-12)
    torch.testing.assert_close(out.pert_align, fgsm.pert_align)
    g1, g2 = gradient_at(MODEL, X, Y), gradient_at(MODEL, X + ETA, Y)
    torch.testing.assert_close(out.extras["omega"], misalignment(g1, g2))
    g1 = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    g2 = torch.tensor([[0.0, 1.0], [1.0, 1.0]], requires_grad=True)
    assert misalignment(g1, g2).item() == 1.0
    none = misalignment(torch.zeros(2, 2), g2)
    assert none.item() == 0.0
    none.backward()
    assert (g2.grad == 0).all()


def test_a_model_with_fused_attention_has_the_second_derivative() -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = x.flatten(1)[:, :16].reshape(-1, 1, 4, 4)
            return self.head(torch.nn.functional.scaled_dot_product_attention(*[tokens] * 3).flatten(1))

    model = Attention()
    out = create("gradalign", LINF, lam=2.0).step(model, torch.rand(4, 1, 4, 4), torch.arange(4) % 3)
    assert out.extras["omega"] > 0
    assert model.head.weight.grad.isfinite().all()
