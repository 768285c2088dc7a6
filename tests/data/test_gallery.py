"""Pictures of data: aligned, complete, explained."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from sora import data
from sora.data import gallery
from tests.data import formats

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


def test_samples_of_many_classes(tmp_path: Path) -> None:
    labels = torch.arange(300) % 100
    many = data.ImageSet(torch.from_numpy(formats.noise(300, 8, 8, 3)), labels)
    dataset = data.Dataset("many", many, many, None, tuple(map(str, range(100))))
    gallery.draw_samples(dataset, tmp_path / "m.png")
    assert Image.open(tmp_path / "m.png").size[0] > 1000


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
