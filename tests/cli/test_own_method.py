"""A method from outside the package: ten lines, one `register`, and it trains, compares and is listed."""

import pytest
from torch import nn

from sora import methods
from sora.methods import Crafted, Inputs, Method
from tests.plugins import install


@pytest.fixture
def half_noise() -> str:
    @methods.register("half-noise", "trains on noise of half the radius", forwards="1", backwards="1")
    class HalfNoise(Method):
        """`x_adv = box(x + eta / 2)`."""

        def draw(self, x):
            return (self.threat.random_start(x) / 2,)

        def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
            return Crafted(self.threat.clamp(batch.x + batch.noise[0]))

    return "half-noise"


def test_it_trains_through_the_command_line(half_noise, sora, tiny, tmp_path) -> None:
    summary = sora.json("train", *tiny, "--method", half_noise, "--out", tmp_path / "a", "--quiet")
    assert summary["method"] == half_noise
    assert "half-noise.attack_mode" in (tmp_path / "a" / "config.yaml").read_text()


def test_it_is_listed_shown_and_suggested(half_noise, sora) -> None:
    assert half_noise in [row["method"] for row in sora.json("list")]
    assert "noise of half the radius" in sora("show", half_noise, "--json").out
    sora.refuse("did you mean 'half-noise'", "train", "--method", "half-nosie")


def test_an_entry_point_may_have_another_name_than_what_it_registers(sora, tmp_path, monkeypatch) -> None:
    code = (
        "from sora.methods import Crafted, Method, register\n"
        "for name in ('first', 'second'):\n"
        "    @register(name, 'ordinary training under another name')\n"
        "    class Outside(Method):\n"
        "        def craft(self, model, batch):\n"
        "            return Crafted(batch.x)\n"
    )
    install(tmp_path, "two_methods", code, "[sora.methods]\nanything = two_methods\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert methods.info("second").name == "second"
    assert {"first", "second"} <= set(methods.names())
    assert "anything" not in methods.names()
    sora("list", "methods")


def test_entry_points_are_found_by_name(sora, tiny, tmp_path, monkeypatch) -> None:
    code = (
        "from sora.methods import Crafted, Method, register\n"
        "@register('outside', 'ordinary training under another name')\n"
        "class Outside(Method):\n"
        "    def craft(self, model, batch):\n"
        "        return Crafted(batch.x)\n"
    )
    install(tmp_path, "outside", code, "[sora.methods]\noutside = outside\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sora("train", *tiny, "--method", "outside", "--out", tmp_path / "a", "--quiet")
