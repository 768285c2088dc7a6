"""Averaged weights: the checks of more-methods.md, section 4.2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from sora import data
from sora.data import ImageSet
from sora.evaluation.examples import as_examples
from sora.settings import Settings
from sora.training import Hook, train
from sora.training.averaging import make_average, with_estimated_statistics

BuildSettings = Callable[..., Settings]


def after(values: list[float], decay: float) -> list[float]:
    """The average of a single weight after each of these values."""
    model = nn.Linear(1, 1, bias=False)
    average, seen = make_average(model, decay, "copy"), []
    for value in values:
        nn.init.constant_(model.weight, value)
        average.update_parameters(model)
        seen.append(next(average.parameters()).item())
    return seen


def test_the_average_of_one_two_four() -> None:
    assert after([1.0, 2.0, 4.0], 0.5) == [1.0, 1.5, 2.75]


def test_no_decay_keeps_the_raw_weights() -> None:
    assert after([1.0, 0.3, 4.7], 0.0) == pytest.approx([1.0, 0.3, 4.7])


def test_the_half_life_of_09995_is_1386_updates() -> None:
    assert after([1.0] + [0.0] * 1386, 0.9995)[-1] == pytest.approx(0.5, abs=1e-3)


def averaged_over(means: list[float], buffers: str) -> AveragedModel:
    model = nn.Sequential(nn.BatchNorm1d(1))
    average = make_average(model, 0.5, buffers)
    for count, mean in enumerate(means, start=1):
        model[0].running_mean.fill_(mean)
        model[0].num_batches_tracked.fill_(count)
        average.update_parameters(model)
    return average


def test_statistics_are_copied_or_averaged_and_their_count_truncated() -> None:
    copied, averaged = (averaged_over([1.0, 2.0, 4.0], kind).module[0] for kind in ("copy", "average"))
    assert (copied.running_mean.item(), copied.num_batches_tracked.item()) == (4.0, 3)
    # 1, then (1 + 2) / 2 = 1.5, which becomes 1, then (1 + 3) / 2.
    assert (averaged.running_mean.item(), averaged.num_batches_tracked.item()) == (2.75, 2)


def test_estimated_statistics_are_the_means_over_training_batches() -> None:
    images = data.load("digits").train
    network = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.LazyLinear(10))
    network(torch.zeros(2, 1, *data.load("digits").image_size))
    network.eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    new = with_estimated_statistics(network, images, 512, torch.device("cpu"))
    pixels, _ = as_examples(images).take(torch.arange(len(images)), torch.device("cpu"))
    torch.testing.assert_close(new[0].running_mean, pixels.mean().reshape(1), rtol=1e-4, atol=1e-5)
    assert new[0].num_batches_tracked.item() == 3  # 1,437 images in batches of at most 512
    assert not new[0].training
    for name, value in network.state_dict().items():  # the network itself is unchanged
        assert torch.equal(value, before[name])
    torch.testing.assert_close(new[2].weight, network[2].weight)


class Batches(nn.Module):
    """Notes the mean pixel of every batch it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.means = nn.BatchNorm2d(1), list[float]()

    def forward(self, x: Tensor) -> Tensor:
        self.means.append(x.mean().item())
        return self.norm(x)  # type: ignore[no-any-return]


def test_statistics_are_estimated_on_batches_of_all_classes_of_images_stored_class_by_class() -> None:
    labels = torch.arange(4).repeat_interleave(50)
    images = (labels * 60).to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 2, 2, 1)  # a grey level per class
    new = with_estimated_statistics(Batches(), ImageSet(images, labels), 64, torch.device("cpu"))
    assert isinstance(new, Batches)
    assert new.means == pytest.approx([90 / 255] * 4, abs=0.01)


def test_statistics_are_estimated_at_the_size_and_with_the_classes_of_the_test_images() -> None:
    labels = torch.arange(5).repeat_interleave(20)
    large = torch.zeros(100, 12, 12, 1, dtype=torch.uint8)
    test = ImageSet(large[:10, :8, :8], labels[:10])
    splits = data.Splits(ImageSet(large, labels), ImageSet(large[:0], labels[:0]), test)
    sample = splits.sample(10)
    pixels, classes = as_examples(sample).take(torch.arange(len(sample)), torch.device("cpu"))
    assert pixels.shape == (10, 1, 8, 8)
    assert classes.bincount().tolist() == [2] * 5


class Raw(Hook):
    """Keeps the trained weights of the last step."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}

    def after_step(self, run: Any, out: Any) -> None:
        self.weights = {name: value.clone() for name, value in run.state.model.state_dict().items()}


def test_averaging_does_not_change_training_and_each_kind_has_its_own_statistics(
    settings: BuildSettings,
) -> None:
    raw, saved = {}, {}
    for kind in ("none", "copy", "average", "estimate"):
        options = {} if kind == "none" else {"ema": 0.9, "ema_buffers": kind}
        config, hook = settings("fgsm", kind, epochs=2, attacks=("clean",), **options), Raw()
        train(config, hooks=[hook], quiet=True)
        raw[kind], saved[kind] = hook.weights, load_file(config.folder() / "model.safetensors")
    statistics = [name for name in saved["copy"] if name.endswith("running_var")]
    for kind in ("copy", "average", "estimate"):
        for name, value in raw["none"].items():
            assert torch.equal(raw[kind][name], value)
        weights = [name for name in saved[kind] if name.endswith("weight")]
        assert all(torch.equal(saved[kind][name], saved["copy"][name]) for name in weights)
    assert all(torch.equal(saved["copy"][name], raw["copy"][name]) for name in statistics)
    for one, other in (("copy", "average"), ("copy", "estimate"), ("average", "estimate")):
        assert not all(torch.equal(saved[one][name], saved[other][name]) for name in statistics)


def test_estimated_statistics_do_not_depend_on_what_dropout_drew_before() -> None:
    images = data.load("digits").train.subset(torch.arange(100))
    network = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm2d(1))
    first, second = (with_estimated_statistics(network, images, 64, torch.device("cpu")) for _ in range(2))
    assert torch.equal(first[1].running_var, second[1].running_var)
