"""How far classes are apart, and images with noise of a radius."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sora.cli import main
from sora.data import load
from sora.data.radius import measure_radius


@pytest.fixture
def close(tmp_path: Path) -> str:
    """Six 2x2 images of two classes, in levels of 255; the first and the fourth are alike."""
    levels = [[10, 10, 10, 10], [60, 60, 60, 60], [90, 60, 60, 60]]
    levels += [[10, 10, 13, 10], [70, 60, 60, 60], [200, 200, 200, 200]]
    images = np.array(levels, np.uint8).reshape(6, 2, 2)
    labels = np.array([0, 0, 0, 1, 1, 1])
    file = tmp_path / "close.npz"
    np.savez(file, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    return f"npz:{file}"


def test_distances_are_those_of_the_nearest_image_of_another_class(close: str) -> None:
    dataset = load(close)
    report = measure_radius(dataset)
    x, y = dataset.train.images.reshape(6, -1) / 255, dataset.train.labels
    for norm, part in ((np.inf, report.linf), (2, report.l2)):
        distances = np.linalg.norm(np.asarray(x)[:, None] - np.asarray(x)[None], norm, axis=2)
        nearest = np.sort(np.where(y[:, None] == y, np.inf, distances).min(1))
        wanted = [nearest[0], nearest[0], nearest[0], nearest[1], nearest[2]]
        assert list(part.quantiles.values()) == pytest.approx(wanted, rel=1e-5)
        assert part.limit == pytest.approx(nearest[0] / 2, rel=1e-5)
    assert report.conflicts == [(0, 3, pytest.approx(3 / 255))]
    assert report.images == 6


def test_the_command_line_prints_or_returns_them(close: str, capsys: Any) -> None:
    assert main(["data", "check", close, "--radius"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "linf, in 1/255 3 3 3 3 10 1.5" in printed
    assert "training images 0 and 3 are alike (linf 3/255), labels differ" in printed
    assert main(["data", "check", close, "--radius", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["radius"]
    assert found["linf"]["limit"] == pytest.approx(1.5 / 255)
    assert found["images"] == 6


def test_images_are_drawn_with_noise_of_each_radius(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "noise.png"
    assert main(["data", "show", "digits", "--eps", "4/255,0.2", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["eps"] == [4 / 255, 0.2]
    with Image.open(out) as image:
        assert torch.tensor(np.asarray(image)).float().std() > 10
    assert main(["data", "show", "digits", "--eps", "x", "--out", str(out)]) == 2
    assert main(["data", "show", "--run", "nowhere", "--eps", "0.1", "--out", str(out)]) == 2
