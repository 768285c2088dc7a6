"""Averaged weights: the checks of more-methods.md, section 4.2."""

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sora import data
from sora.data import ImageSet
from sora.evaluation.examples import as_examples
from sora.training import train
from sora.training.run import with_estimated_statistics
from sora.training.state import make_average
from tests.training.helpers import Recorder, weights_of

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("decay", "values", "last"),
    [
        (0.5, [1.0], 1.0),  # the first update copies
        (0.5, [1.0, 2.0], 1.5),
        (0.5, [1.0, 2.0, 4.0], 2.75),
        (0.0, [1.0, 0.3, 4.7], 4.7),
        pytest.param(0.9995, [1.0] + [0.0] * 1386, 0.5, id="half-life"),
    ],
)
def test_the_average_of_a_weight(decay: float, values: list[float], last: float) -> None:
    model = nn.Linear(1, 1, bias=False)
    average = make_average(model, decay, "copy")
    for value in values:
        nn.init.constant_(model.weight, value)
        average.update_parameters(model)
    assert next(average.parameters()).item() == pytest.approx(last, abs=1e-3 if decay > 0.9 else 1e-6)


# Averaged: 1, then (1 + 2) / 2 = 1.5, which becomes 1, then (1 + 3) / 2.
@pytest.mark.parametrize(("kind", "mean", "tracked"), [("copy", 4.0, 3), ("average", 2.75, 2)])
def test_statistics_are_copied_or_averaged_and_their_count_truncated(kind, mean, tracked) -> None:
    model = nn.Sequential(nn.BatchNorm1d(1))
    average = make_average(model, 0.5, kind)
    for count, value in enumerate((1.0, 2.0, 4.0), start=1):
        model[0].running_mean.fill_(value)
        model[0].num_batches_tracked.fill_(count)
        average.update_parameters(model)
    norm = average.module[0]
    assert (norm.running_mean.item(), norm.num_batches_tracked.item()) == (mean, tracked)


def test_estimated_statistics_are_the_means_over_training_batches() -> None:
    images = data.load("digits").train
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.LazyLinear(10))
    model(torch.zeros(2, 1, *data.load("digits").image_size))
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    new = with_estimated_statistics(model, images, 512, CPU)
    pixels, _ = as_examples(images).take(torch.arange(len(images)), CPU)
    torch.testing.assert_close(new[0].running_mean, pixels.mean().reshape(1), rtol=1e-4, atol=1e-5)
    assert new[0].num_batches_tracked.item() == 3  # 1,437 images in batches of at most 512
    assert not new[0].training
    for name, value in model.state_dict().items():  # the model itself is unchanged
        assert torch.equal(value, before[name])
    torch.testing.assert_close(new[2].weight, model[2].weight)


class Batches(nn.Module):
    """Notes the mean pixel of every batch it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.means = nn.BatchNorm2d(1), list[float]()

    def forward(self, x: Tensor) -> Tensor:
        self.means.append(x.mean().item())
        return self.norm(x)  # type: ignore[no-any-return]


def test_statistics_are_estimated_on_batches_of_all_classes_at_the_size_of_test_images() -> None:
    labels = torch.arange(4).repeat_interleave(50)
    images = (labels * 60).to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 2, 2, 1)  # a grey level per class
    new = with_estimated_statistics(Batches(), ImageSet(images, labels), 64, CPU)
    assert isinstance(new, Batches)
    assert new.means == pytest.approx([90 / 255] * 4, abs=0.01)
    labels = torch.arange(5).repeat_interleave(20)
    large = torch.zeros(100, 12, 12, 1, dtype=torch.uint8)
    test = ImageSet(large[:10, :8, :8], labels[:10])
    splits = data.Splits(ImageSet(large, labels), ImageSet(large[:0], labels[:0]), test)
    sample = splits.sample(10)
    pixels, classes = as_examples(sample).take(torch.arange(len(sample)), CPU)
    assert pixels.shape == (10, 1, 8, 8)
    assert classes.bincount().tolist() == [2] * 5


def test_averaging_does_not_change_training_and_each_kind_has_its_own_statistics(settings) -> None:
    raw, saved = {}, {}
    for kind in ("none", "copy", "average", "estimate"):
        options = {} if kind == "none" else {"ema": 0.9, "ema_buffers": kind}
        config = settings("fgsm", kind, epochs=1, attacks=("clean",), **options)
        weights = Recorder(weights_of)
        train(config, hooks=[weights], quiet=True)
        raw[kind], saved[kind] = weights.values[-1], load_file(config.folder() / "model.safetensors")
    statistics = [name for name in saved["copy"] if name.endswith("running_var")]
    for kind in ("copy", "average", "estimate"):
        for name, value in raw["none"].items():
            assert torch.equal(raw[kind][name], value)
        names = [name for name in saved[kind] if name.endswith("weight")]
        assert all(torch.equal(saved[kind][name], saved["copy"][name]) for name in names)
    assert all(torch.equal(saved["copy"][name], raw["copy"][name]) for name in statistics)
    for one, other in (("copy", "average"), ("copy", "estimate"), ("average", "estimate")):
        assert not all(torch.equal(saved[one][name], saved[other][name]) for name in statistics)


def test_estimated_statistics_do_not_depend_on_what_dropout_drew_before() -> None:
    images = data.load("digits").train.subset(torch.arange(100))
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm2d(1))
    first, second = (with_estimated_statistics(model, images, 64, CPU) for _ in range(2))
    assert torch.equal(first[1].running_var, second[1].running_var)
