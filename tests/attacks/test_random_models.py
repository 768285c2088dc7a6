"""Attacks on models with randomness in the forward pass: EOT, AutoAttack's rand and plus versions, seeds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sora import evaluate
from sora.attacks import create
from sora.attacks.autoattack import AutoPart, build
from sora.threat import L2, Linf, Threat

torch.set_num_threads(1)


class Noisy(nn.Module):
    """A linear model that adds noise to its input, also in evaluation mode."""

    def __init__(self, classes: int = 5, sigma: float = 0.5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.sigma, self.calls = nn.Linear(75, classes), sigma, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        logits: Tensor = self.layer((x + self.sigma * torch.randn_like(x)).flatten(1))
        return logits


def batch(n: int = 12, classes: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(n, 3, 5, 5, generator=generator), torch.randint(classes, (n,), generator=generator)


@pytest.mark.usefixtures("short_autoattack")
@pytest.mark.parametrize("name", ["pgd3@eot4", "pgd3", "square20", "apgd-ce@eot2"])
def test_a_random_model_is_attacked_the_same_way_each_time(name: str) -> None:
    model, (x, y) = Noisy(), batch(4)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = create(name)(model, x, y, Linf(0.1), seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert torch.equal(create(name)(model, x, y, Linf(0.1), seed=3), first)


def test_the_accuracy_of_a_random_model_can_be_repeated() -> None:
    model, (x, y) = Noisy(), batch(24)
    names = "clean,fgsm,pgd3@eot2,square20"
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        results.append(evaluate(model, (x, y), Linf(0.02), names, batch_size=10).predictions)
    for name, predicted in results[0].items():
        assert torch.equal(predicted, results[1][name])


def test_eot_averages_the_gradient_over_passes() -> None:
    """With 200 passes, the direction on a noisy quadratic is the one without noise; with 1 it is not."""

    class Curved(nn.Module):
        def __init__(self, sigma: float) -> None:
            super().__init__()
            self.sigma = sigma

        def forward(self, x: Tensor) -> Tensor:
            z = x.flatten(1)
            score = ((z + self.sigma * torch.randn_like(z)) ** 2).sum(1)
            return torch.stack((-score, score), 1)

    x, y = torch.full((20, 1, 2, 2), 0.3), torch.zeros(20, dtype=torch.long)
    threat = Linf(0.1)
    exact = create("pgd1")(Curved(0.0), x, y, threat, seed=0)
    averaged = create("pgd1@eot200")(Curved(1.0), x, y, threat, seed=0)
    single = create("pgd1")(Curved(1.0), x, y, threat, seed=0)
    assert (averaged == exact).float().mean() > 0.95
    assert (single == exact).float().mean() < 0.9


def test_eot_counts_its_passes_and_is_recorded() -> None:
    model, (x, y) = Noisy(), batch()
    attack = create("pgd3x2@eot4")
    attack(model, x, y, Linf(1e-6))
    assert attack.passes == 2 * (3 * 4 + 1) + 1
    assert 3 * 4 + 1 <= model.calls <= attack.passes
    settings = attack.settings(Linf(0.1))
    assert (settings["steps"], settings["restarts"], settings["eot"]) == (3, 2, 4)
    assert "eot" not in create("pgd3x2").settings(Linf(0.1))


@pytest.mark.parametrize("threat", [Linf(0.06), L2(0.5)], ids=["linf", "l2"])
@pytest.mark.parametrize("version", ["rand", "plus"])
def test_parts_are_those_of_the_package(version: str, threat: Threat) -> None:
    from pyautoattack import AutoAttack

    model = Noisy(10)
    norm = {"linf": "Linf", "l2": "L2"}[threat.norm]
    theirs = AutoAttack(model, norm=norm, eps=threat.eps, version=version, device="cpu")
    objects = {"apgd-t": theirs.apgd_targeted, "square": theirs.square}
    objects |= dict.fromkeys(("apgd-ce", "apgd-dlr"), theirs.apgd)
    objects |= dict.fromkeys(("fab", "fab-t"), theirs.fab)
    ours = create(f"aa-{version}").for_classes(10).parts
    assert [part.kind for part in ours if isinstance(part, AutoPart)] == theirs.attacks_to_run
    for part in ours:
        assert isinstance(part, AutoPart)
        built, reference = build(part, model, torch.device("cpu"), threat, 7), objects[part.kind]
        for key in ("n_iter", "eot_iter", "n_queries", "n_target_classes", "norm", "eps"):
            if part.kind != "fab":  # which has no targets
                assert getattr(built, key, None) == getattr(reference, key, None)
        if part.kind == "fab-t":
            assert (built.targeted, built.n_restarts) == (True, 1)  # set by the package when it runs it
        else:
            assert built.n_restarts == reference.n_restarts
        if part.kind.startswith("apgd") and part.kind != "apgd-t":
            assert built.loss == part.kind.removeprefix("apgd-")


def test_versions_without_some_parts_say_so() -> None:
    assert [part.name for part in create("aa-rand").for_classes(2).parts] == ["apgd-ce@eot20"]
    assert create("aa-rand").for_classes(2).name == "aa-rand-reduced"
    assert create("aa-rand").for_classes(3).name == "aa-rand"
    assert create("aa-plus").for_classes(3).name == "aa-plus-reduced"
    assert create("aa-plus-reduced").for_classes(3).name == "aa-plus-reduced"
