"""Methods that some options turn into each other: the checks "A equals B" of the specification."""

from typing import Any

import pytest
import torch
from torch import Tensor

from sora.methods import create

from .toys import EPS, ETA, INDEX, LINF, X, Y, assert_same, assert_same_gradients, prepared, run

PLAIN = {"sample": False, "adaptive": False, "box_noise": True}  # SORA without what is new in it
SIGNS = (torch.rand(X.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) - 0.5).sign()


@pytest.mark.parametrize(
    ("one", "options", "other", "theirs", "radius"),
    [  # the radius of the noise that both get, in multiples of eps
        ("aaer", {"lambda1": 0}, "n-fgsm", {}, 2),
        ("aaer", {"lambda1": 0, "variant": "rs"}, "fgsm-rs", {}, 1),
        ("elle", {"lam": 0}, "fgsm", {}, None),
        ("n-fgsm", {"k": 0}, "fgsm", {}, None),
        ("pgd", {"steps": 1, "alpha": 1.25}, "fgsm-rs", {}, 1),
        ("gradalign", {"lam": 0}, "fgsm-rs", {}, 1),
        ("multigrad", {"copies": 1}, "zerograd", {"q": 0.0}, 1),
        ("sora", {**PLAIN, "alpha_max": 1.25, "clip_ball": True}, "fgsm-rs", {}, 1),
        ("sora", {**PLAIN, "alpha_max": 1.0, "k": 2}, "n-fgsm", {}, 2),
        ("fgsm-rs-cs", {"w2": 0.0, "phi": 1.0}, "n-fgsm", {"k": 1.0, "alpha": 1.0}, 1),
        ("fgsm-mep-cs", {"w2": 0.0}, "fgsm-mep", {"lam": 0.0}, None),
        ("fgsm-mep", {"mu": 0.0}, "fgsm-ep", {}, None),
        ("tdat", {"lam": 0.0, "gam_min": 1.0}, "fgsm-bp", {"lam": 0.0, "phi": 1.0}, None),
    ],
)
def test_two_steps_are_the_same(one, options, other, theirs, radius) -> None:
    ours, known = prepared(one, **options), {} if radius is None else {"noise": radius * ETA}
    reference = prepared(other, **theirs)
    for method in (ours, reference):
        method.begin_epoch(3)  # ConvergeSmooth would act from here on
    stored = [method.delta.values for method in (ours, reference) if hasattr(method, "delta")]
    if len(stored) == 2:
        stored[1].copy_(stored[0])
    for _ in range(2):
        assert_same(run(ours, **known), run(reference, **known))
    torch.testing.assert_close(stored[:1], stored[-1:], rtol=0, atol=1e-7)


def shared(method: Any, group: Tensor) -> Tensor:
    """The perturbations of FGSM-UAP that these groups of images start from."""
    return (1.25 * EPS * method.u[group].double()).clamp(-EPS, EPS)


@pytest.mark.parametrize(
    ("name", "options", "x", "start"),
    [
        ("atas", {}, X, lambda method: method.delta.values[INDEX]),
        ("fgsm-mep", {"lam": 0.0, "phi": 1.0}, 0.2 + 0.6 * X, lambda method: method.delta.values[INDEX]),
        ("fgsm-uap", {"lam": 0.0, "nu": 0.0}, X, lambda method: shared(method, 0 * Y)),
        ("fgsm-cuap", {"lam": 0.0, "nu": 0.0}, X, lambda method: shared(method, Y)),
    ],
)
def test_a_memory_is_the_noise_of_fgsm_rs(name, options, x, start) -> None:
    method = prepared(name, **options)
    expected = run(create("fgsm-rs", LINF, alpha=1.0), x=x, noise=start(method).double())
    assert_same(run(method, x=x), expected)


@pytest.mark.parametrize(("name", "weight"), [("nuat", "lam"), ("gat", "lam"), ("trades", "beta")])
def test_a_penalty_without_weight_trains_like_benign(name: str, weight: str) -> None:
    out, gradients = run(prepared(name, **{weight: 0}))
    plain, expected = run(create("benign", LINF))
    assert_same_gradients(gradients, expected)
    torch.testing.assert_close(out.loss, plain.loss)


@pytest.mark.parametrize(
    ("name", "options", "noise", "theirs"),
    [
        ("gat", {}, SIGNS * EPS / 2, {}),
        ("fgsm-law", {"attack_logits": True}, SIGNS * ETA.abs(), {"attack_mode": "train"}),
    ],
)
def test_the_attack_is_nuats_without_its_nuclear_norm(name, options, noise, theirs) -> None:
    assert ((X == 0) | (X == 1)).any()  # border pixels
    out, _ = run(prepared(name, lam=0.0, **options), noise=noise)
    nuat, _ = run(create("nuat", LINF, lam=0, **theirs), noise=SIGNS * EPS / 2)
    torch.testing.assert_close(out.x_adv, nuat.x_adv, rtol=0, atol=1e-12)
