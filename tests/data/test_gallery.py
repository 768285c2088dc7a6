"""Pictures of data: aligned, complete, explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sora import data
from sora.data import gallery

NOWHERE = Path("picture.png")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that would have been written."""
    drawn: list[Any] = []
    monkeypatch.setattr(gallery, "_save", lambda figure, out: drawn.append(figure))
    return drawn


def test_samples_are_not_stretched_and_every_bar_is_beside_its_row(figures: list[Any]) -> None:
    gallery.draw_samples(data.load("digits"), NOWHERE)
    (figure,) = figures
    figure.canvas.draw()
    samples = figure.axes[0]
    (bars,) = samples.child_axes
    assert samples.get_aspect() == 1
    rows = [samples.transData.transform((0, place))[1] for place in samples.get_yticks()]
    middles = [bars.transData.transform((0, bar.get_y() + bar.get_height() / 2))[1] for bar in bars.patches]
    assert middles == pytest.approx(rows, abs=0.5)
    assert len(middles) == 10


@pytest.mark.parametrize(("channels", "key"), [(1, "lighter an increase,"), (3, "of the channel")])
def test_attacked_images_are_close_together_and_the_colours_explained(
    figures: list[Any], channels: int, key: str
) -> None:
    clean = torch.full((4, channels, 16, 16), 0.5)
    captions = [f"class {k}\nclean: a\nperturbed: b" for k in range(4)]
    gallery.draw_attack(clean, clean + 0.15, captions, "title", NOWHERE)
    (axes,) = figures[0].axes
    assert [text.get_text() for text in axes.get_xticklabels()] == [
        "clean",
        "perturbed",
        "perturbation x 3.3",
    ]
    assert [text.get_text() for text in axes.get_yticklabels()] == captions
    assert key in axes.get_xlabel()
    assert axes.images[0].get_array().shape[1] <= 3 * 16 + 2 * 2  # no wide gaps between the three


def test_images_are_chosen_from_as_many_classes_as_possible() -> None:
    digits = data.load("digits").test
    chosen = digits.labels[gallery.one_of_each(digits, 11)].tolist()
    assert chosen == [*range(10), 0]
    rare = digits.subset(
        torch.cat([(digits.labels == 0).nonzero()[:1, 0], (digits.labels == 1).nonzero()[:, 0]])
    )
    positions = gallery.one_of_each(rare, 4)
    assert rare.labels[positions].tolist() == [0, 1, 1, 1]
    assert len(set(positions.tolist())) == 4
