"""A method from outside the package: ten lines, one `register`, and it trains, compares and is listed."""

import pytest
from torch import nn

from sora import methods
from sora.methods import Crafted, Inputs, Method


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


def test_it_is_trained_listed_shown_and_suggested(half_noise, sora, tiny, tmp_path) -> None:
    summary = sora.json("train", *tiny, "--method", half_noise, "--out", tmp_path / "a", "--quiet")
    assert summary["method"] == half_noise
    assert "half-noise.attack_mode" in (tmp_path / "a" / "config.yaml").read_text()
    assert half_noise in [row["method"] for row in sora.json("list")]
    assert "noise of half the radius" in sora("show", half_noise, "--json").out
    sora.refuse("did you mean 'half-noise'", "train", "--method", "half-nosie")
