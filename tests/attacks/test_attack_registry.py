"""Attacks by name, the settings stored next to each accuracy, and attacks from other packages."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sora import attacks, evaluate
from sora.attacks import Attack, create, create_all
from sora.attacks.pgd import PGD
from sora.errors import UserError
from sora.threat import L2, Linf, Threat


def test_settings_match_the_definition() -> None:
    threat = Linf("8/255")
    assert create("clean").settings(threat)["eps"] == 0
    expected = {"norm": "linf", "eps": 8 / 255, "steps": 1, "step_size": 8 / 255, "restarts": 1}
    assert create("fgsm").settings(threat) == expected
    many = {"steps": 50, "step_size": 2 / 255, "restarts": 10}
    assert create("pgd50x10").settings(threat) == expected | many
    assert create("pgd7").settings(L2(1.0))["step_size"] == 0.25


def test_names_are_listed_in_order_once_each_and_all_can_be_created() -> None:
    parts = ["apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square"]
    versions = ["aa", "aa-reduced", "aa-plus", "aa-rand"]
    listed = ["clean", "fgsm", "pgd10", "pgd50x10", "pgd20@eot8", *versions, *parts]
    assert attacks.names() == listed
    assert [attack.name for attack in create_all(listed)] == listed
    summaries = [attacks.info(name).summary for name in listed]
    assert all(summaries)
    assert len(set(summaries)) == len(summaries)
    assert [attack.name for attack in create_all(" FGSM,clean,,fgsm ")] == ["fgsm", "clean"]
    assert attacks.info("pgd7") is attacks.info("pgd10") is attacks.info("pgd")
    assert attacks.info("pgd7x3") is attacks.info("pgd50x10")


ALLOWED = r"unknown attack .*allowed: aa, .*aa-reduced, .*pgdK, .*pgdKxR"
REFUSED = {
    **dict.fromkeys(("pgd", "pgd010", "pgd10x", "pgd-10", "autoattack", ""), ALLOWED),
    **dict.fromkeys(("square@eot2", "square0", "fab-tx5", "fab@eot2", "aax5"), ALLOWED),  # no such options
    "pdg10": f"did you mean 'pgd10'.*{ALLOWED[15:]}",
    **dict.fromkeys(("pgd0", "pgd0x5"), r": K in pgdK and pgdKxR must be 1 or more"),
    "pgd10x0": ": R in pgdK and pgdKxR must be 1 or more",
    **dict.fromkeys(("pgd20@eot0", "apgd-ce@eot0", "fabx0"), "must be 1 or more"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_unknown_name_or_a_count_of_zero_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(UserError, match=REFUSED[name]) as caught:
        create(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (" , ", "no attack was given"),
        *[([PGD(name)], "allowed: letters, digits") for name in ("mine[1]", "mine/2", "")],  # they name files
        ([PGD("mine"), PGD("mine", 3)], "two different attacks are called mine"),
    ],
)
def test_lists_of_attacks_that_are_refused(given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        create_all(given)
    assert len(create_all([PGD("mine"), PGD("mine")])) == 1


@pytest.fixture
def brightness() -> None:
    """An attack that somebody else writes: every pixel brighter by K percent of eps."""
    pattern = r"bright(?P<percent>\d+)"

    @attacks.register("bright", "brighter by K percent of eps", pattern=pattern, examples=("bright50",))
    @dataclass(frozen=True)
    class Brightness(Attack):
        percent: int = 100

        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
            return threat.clamp(x + threat.eps * self.percent / 100)

        def settings(self, threat: Threat) -> dict[str, Any]:
            return super().settings(threat) | {"steps": 1}


class BrightIsOne(nn.Module):
    """Class 1 where the mean is above 0.58."""

    def forward(self, x: Tensor) -> Tensor:
        excess = x.flatten(1).mean(1) - 0.58
        return torch.stack((-excess, excess), 1)


@pytest.mark.usefixtures("brightness")
def test_a_registered_attack_is_listed_and_works_in_evaluate_and_its_name_is_taken() -> None:
    assert attacks.names()[-1] == "bright50"
    x, y = torch.full((4, 1, 2, 2), 0.5), torch.zeros(4, dtype=torch.long)
    result = evaluate(BrightIsOne(), (x, y), Linf(0.1), attacks="clean,bright50,bright100")
    assert result.accuracy == {"clean": 1.0, "bright50": 1.0, "bright100": 0.0}
    assert result.attacks["bright100"]["steps"] == 1
    with pytest.raises(UserError, match="attack 'bright' is already registered"):
        attacks.register("bright", "again")(Attack)
