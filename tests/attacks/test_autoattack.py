"""AutoAttack: the attacks and parameters of the package, for any number of classes, without side effects."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

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
