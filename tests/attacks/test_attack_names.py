"""Names of attacks, and the settings written beside each accuracy."""

from __future__ import annotations

import pytest

from sora.attacks import NAMES, parse, parse_all
from sora.errors import UserError
from sora.threat import L2, Linf


def test_settings_are_those_of_the_definition() -> None:
    threat = Linf("8/255")
    assert parse("clean").settings(threat)["eps"] == 0
    assert parse("fgsm").settings(threat) == {
        "norm": "linf",
        "eps": 8 / 255,
        "steps": 1,
        "step_size": 8 / 255,
        "restarts": 1,
    }
    found = parse("pgd50x10").settings(threat)
    assert (found["steps"], found["step_size"], found["restarts"]) == (50, 2 / 255, 10)
    assert parse("pgd7").settings(L2(1.0))["step_size"] == 0.25


def test_every_documented_name_is_known() -> None:
    assert [attack.name for attack in parse_all(NAMES)] == list(NAMES)
    assert [attack.name for attack in parse_all(" FGSM,clean,,fgsm ")] == ["fgsm", "clean"]


@pytest.mark.parametrize("name", ["pdg10", "pgd", "pgd0", "pgd10x", "pgd10x0", "pgd-10", "autoattack", ""])
def test_an_unknown_name_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(UserError, match=r"allowed: aa, apgd-ce"):
        parse(name)


def test_the_nearest_name_is_offered() -> None:
    with pytest.raises(UserError, match="did you mean 'pgd10'"):
        parse("pdg10")
    with pytest.raises(UserError, match="no attack was named"):
        parse_all(" , ")
