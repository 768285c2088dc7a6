"""AutoAttack: the attacks and parameters of the package, for any number of classes; random models and EOT."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sora import evaluate
from sora.attacks import autoattack, create
from sora.attacks.autoattack import PARTS, VERSIONS, AutoPart, build
from sora.errors import UserError
from sora.threat import L2, Linf, Threat
from tests.attacks.test_fgsm_and_pgd import assert_allowed

torch.set_num_threads(1)

THREATS = (Linf(0.06), L2(0.5))


def net(seed: int, classes: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 16), nn.ReLU(), nn.Linear(16, classes)).train()


def batch(model: nn.Module, seed: int, n: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    return x, model(x).argmax(1)


@pytest.mark.usefixtures("short_autoattack")
@pytest.mark.parametrize("classes", [2, 3, 4, 9, 10, 11])
@pytest.mark.parametrize("threat", THREATS, ids=["linf", "l2"])
def test_any_number_of_classes_runs(classes: int, threat: Threat) -> None:
    model = net(classes, classes)
    x, y = batch(model, 1, 6)
    before = torch.get_rng_state()
    x_adv = autoattack(model, x, y, threat)
    assert torch.equal(torch.get_rng_state(), before)
    assert_allowed(x, x_adv, threat)
    assert torch.equal(x_adv, autoattack(model, x, y, threat))
    assert model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())

    fitted = create("aa").for_classes(classes)
    parts = [part for part in VERSIONS["aa"] if classes >= 4 or part != "apgd-t"]
    assert fitted.name == ("aa" if classes >= 4 else "aa-reduced")
    assert [part.name for part in fitted.parts] == parts
    targets = {part: min(9, classes - 1) for part in parts if part[-2:] == "-t"}
    assert fitted.settings(threat)["targets"] == targets


@pytest.mark.parametrize("threat", THREATS, ids=["linf", "l2"])
def test_parameters_are_those_of_the_standard_version(threat: Threat) -> None:
    model, norm = net(0, 10), {"linf": "Linf", "l2": "L2"}[threat.norm]
    objects = {
        name: build(AutoPart(name).for_classes(10), model, torch.device("cpu"), threat, 7) for name in PARTS
    }
    for attack in objects.values():
        assert (attack.norm, attack.eps, attack.seed, attack.n_restarts) == (norm, threat.eps, 7, 1)
        assert attack.verbose is False
    for name in ("apgd-ce", "apgd-t"):
        apgd = objects[name]
        assert (apgd.n_iter, apgd.eot_iter, apgd.thr_decr, apgd.use_largereps) == (100, 1, 0.75, False)
    assert objects["apgd-ce"].loss == "ce"
    assert (objects["apgd-t"].loss, objects["apgd-t"].n_target_classes) == ("dlr-targeted", 9)
    fab = objects["fab-t"]
    assert (fab.n_iter, fab.targeted, fab.n_target_classes) == (100, True, 9)
    assert (fab.alpha_max, fab.eta, fab.beta) == (0.1, 1.05, 0.9)
    square = objects["square"]
    assert (square.n_queries, square.p_init, square.loss) == (5000, 0.8, "margin")
    assert (square.rescale_schedule, square.targeted) == (False, False)


@pytest.mark.usefixtures("short_autoattack")
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 99),
    name=st.sampled_from(["apgd-ce", "apgd-t", "fab-t"]),
    threat=st.builds(lambda kind, eps: kind(eps), st.sampled_from([Linf, L2]), st.floats(0, 0.3)),
)
def test_parts_stay_inside_ball_and_box(seed: int, name: str, threat: Threat) -> None:
    model = net(seed, 5)
    x, y = batch(model, seed, 4)
    x.view(-1)[::3] = x.view(-1)[::3].round()
    x_adv = create(name)(model, x.to(memory_format=torch.channels_last), y, threat, seed)
    assert_allowed(x, x_adv, threat)
    if threat.eps == 0:
        assert torch.equal(x_adv, x)


@pytest.mark.parametrize(("name", "least"), [("apgd-t", 4), ("apgd-dlr", 3)])
def test_parts_that_need_more_classes_say_so(name: str, least: int) -> None:
    model = net(0, least - 1)
    with pytest.raises(UserError, match=f"{name} needs {least} classes or more, the model has {least - 1}"):
        create(name)(model, *batch(model, 0, 2), Linf(0.1))


@pytest.mark.parametrize(
    ("shape", "threat"),
    [((2, 9), Linf(0.1)), ((2, 3, 6, 6), Linf(0.1, box=(0, 255))), ((2, 1, 4, 4), L2(1.0))],
    ids=["vectors", "box", "tiny"],
)
def test_data_it_cannot_attack_gets_a_clear_message(shape: tuple[int, ...], threat: Threat) -> None:
    with pytest.raises(UserError, match=r"square (works on|needs) images"):
        create("square")(nn.Flatten(), torch.rand(shape), torch.zeros(2, dtype=torch.long), threat)


SIZES = [(side, side) for side in range(5, 41)] + [(28, 30), (30, 28), (32, 48), (48, 32), (5, 9), (64, 32)]


@pytest.mark.parametrize("size", SIZES)
def test_square_in_l2_refuses_exactly_the_sizes_that_the_package_cannot_divide(size: tuple[int, int]) -> None:
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 2))
    x = torch.rand(2, 1, *size)
    y, part = model(x).argmax(1), create("square1")
    package = build(part.for_classes(2), model, x.device, L2(0.1), 0)
    try:
        package.perturb(x, y)
    except RuntimeError:
        with pytest.raises(UserError, match=f"square.* images of {size[0]}x{size[1]} pixels in l2"):
            part(model, x, y, L2(0.1))
    else:
        part(model, x, y, L2(0.1))
    part(model, x, y, Linf(0.1))


@pytest.mark.parametrize("threat", THREATS, ids=["linf", "l2"])
@pytest.mark.parametrize("version", ["standard", "rand", "plus"])
def test_parts_are_those_of_the_package(version: str, threat: Threat) -> None:
    from pyautoattack import AutoAttack

    model, norm = net(0, 10), {"linf": "Linf", "l2": "L2"}[threat.norm]
    theirs = AutoAttack(model, norm=norm, eps=threat.eps, version=version, device="cpu")
    objects = {"apgd-t": theirs.apgd_targeted, "square": theirs.square}
    objects |= dict.fromkeys(("apgd-ce", "apgd-dlr"), theirs.apgd)
    objects |= dict.fromkeys(("fab", "fab-t"), theirs.fab)
    ours = create("aa" if version == "standard" else f"aa-{version}").for_classes(10).parts
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


class Noisy(nn.Module):
    """A linear model that adds noise to its input, also in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.calls = nn.Linear(108, 5), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        logits: Tensor = self.layer((x + 0.5 * torch.randn_like(x)).flatten(1))
        return logits


@pytest.mark.usefixtures("short_autoattack")
@pytest.mark.parametrize("name", ["pgd3@eot4", "pgd3", "square20", "apgd-ce@eot2"])
def test_a_random_model_is_attacked_the_same_way_each_time(name: str) -> None:
    model = Noisy()
    x, y = batch(model, 1, 4)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = create(name)(model, x, y, Linf(0.1), seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert torch.equal(create(name)(model, x, y, Linf(0.1), seed=3), first)


def test_the_accuracy_of_a_random_model_can_be_repeated() -> None:
    model = Noisy()
    x, y = batch(model, 1, 24)
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
    model, attack = Noisy(), create("pgd3x2@eot4")
    x, y = batch(model, 1, 12)
    model.calls = 0
    attack(model, x, y, Linf(1e-6))
    assert attack.passes == 2 * (3 * 4 + 1) + 1
    assert 3 * 4 + 1 <= model.calls <= attack.passes
    settings = attack.settings(Linf(0.1))
    assert (settings["steps"], settings["restarts"], settings["eot"]) == (3, 2, 4)
    assert "eot" not in create("pgd3x2").settings(Linf(0.1))
