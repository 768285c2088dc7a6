from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from sora import data
from sora._seeds import mix
from sora.data import Dataset, ImageSet, split, stratified
from sora.errors import UserError


def numbered(n: int, classes: int = 5, start: int = 0) -> ImageSet:
    """Images whose four pixels spell their number."""
    numbers = torch.arange(start, start + n)
    pixels = torch.stack([numbers // 256**k % 256 for k in range(4)], 1).to(torch.uint8)
    return ImageSet(pixels.view(n, 2, 2, 1), numbers % classes)


def read(images: ImageSet) -> list[int]:
    pixels = images.gather(torch.arange(len(images))).long().reshape(len(images), 4)
    return (pixels * torch.tensor([1, 256, 65536, 16777216])).sum(1).tolist()


def dataset(train: int = 500, test: int = 100, val: int | None = None) -> Dataset:
    own = None if val is None else numbered(val, start=20_000)
    return Dataset("toy", numbered(train), numbered(test, start=10_000), own, tuple("abcde"))


def test_views_of_views_select_without_copying() -> None:
    whole = numbered(20)
    view = whole.subset(torch.tensor([3, 5, 7, 11])).subset(torch.tensor([2, 0]))
    assert read(view) == [7, 3]
    assert view.labels.tolist() == [2, 3]
    assert view.images.data_ptr() == whole.images.data_ptr()


def test_gather_is_channels_last() -> None:
    images = ImageSet(torch.zeros(6, 4, 5, 3, dtype=torch.uint8), torch.zeros(6, dtype=torch.long))
    batch = images.gather(torch.tensor([4, 1]))
    assert batch.shape == (2, 3, 4, 5)
    assert batch.dtype == torch.uint8
    assert batch.is_contiguous(memory_format=torch.channels_last)


def test_center_is_the_middle_of_the_image() -> None:
    base = torch.arange(36, dtype=torch.uint8).view(1, 6, 6, 1)
    middle = ImageSet(base, torch.zeros(1, dtype=torch.long)).center(2, 4)
    assert middle.gather(torch.tensor([0])).flatten().tolist() == [13, 14, 15, 16, 19, 20, 21, 22]


def test_batches_come_in_order_between_zero_and_one() -> None:
    images = numbered(300).subset(torch.arange(10, 290))
    xs, ys = zip(*images.batches(64), strict=True)
    assert [len(y) for y in ys] == [64, 64, 64, 64, 24]
    assert torch.equal(torch.cat(ys), images.labels)
    x = torch.cat(xs)
    assert x.dtype == torch.float32
    assert torch.equal((x[:, 0, 0, 0] * 255).round().long(), torch.arange(10, 290) % 256)


@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=300),
    fraction=st.floats(0, 1),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=100, deadline=None)
def test_stratified_keeps_every_share(labels: list[int], fraction: float, seed: int) -> None:
    all_labels = torch.tensor(labels)
    count = int(fraction * len(labels))
    chosen = stratified(all_labels, count, seed)
    assert len(chosen) == count
    assert len(set(chosen.tolist())) == count
    kept = all_labels[chosen].bincount(minlength=7)
    share = all_labels.bincount(minlength=7) * (count / len(labels))
    assert ((kept - share).abs() <= 1.0 + 1e-9).all()


def test_a_large_class_among_small_ones_keeps_its_share() -> None:
    """Rounding four classes of one image the same way must not move class 4 by more than one image."""
    labels = torch.tensor([0, 1, 2, 3, 4, 4, 4])
    for seed in range(20):
        chosen = labels[stratified(labels, 5, seed)].bincount(minlength=5)
        assert abs(int(chosen[4]) - 5 / 7 * 3) <= 1


def evenly(labels: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """The rule of earlier versions, whose splits must not change: it has no bounds per class."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(labels), generator=generator).tolist()
    members: dict[int, list[int]] = {}
    for position in shuffled:
        members.setdefault(int(labels[position]), []).append(position)
    fractions, positions = [], []
    for label in sorted(members):
        size = torch.tensor(len(members[label]))
        for place, position in enumerate(members[label]):
            fractions.append(float((torch.tensor(place) + 0.5) / size))
            positions.append(position)
    order = sorted(range(len(fractions)), key=fractions.__getitem__)
    return torch.tensor(sorted(positions[i] for i in order[:count]), dtype=torch.long)


@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=120),
    fraction=st.floats(0, 1),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=200, deadline=None)
def test_stratified_is_the_earlier_rule_wherever_that_kept_every_share(
    labels: list[int], fraction: float, seed: int
) -> None:
    all_labels, count = torch.tensor(labels), int(fraction * len(labels))
    earlier = evenly(all_labels, count, seed)
    share = all_labels.bincount(minlength=7) * (count / len(labels))
    if ((all_labels[earlier].bincount(minlength=7) - share).abs() <= 1.0 + 1e-9).all():
        assert torch.equal(stratified(all_labels, count, seed), earlier)


@pytest.mark.parametrize("count", [0, 1, 7, 100, 1000, 2000, 20_000, 49_999, 50_000])
def test_balanced_splits_are_those_of_earlier_versions(count: int) -> None:
    labels = torch.arange(50_000) % 10
    assert torch.equal(stratified(labels, count, count + 3), evenly(labels, count, count + 3))


def test_the_splits_of_digits_are_those_of_earlier_versions() -> None:
    labels = torch.from_numpy(load_digits().target)
    test = evenly(labels, 360, mix(0x50A, 360))
    rest = torch.tensor(sorted(set(range(len(labels))) - set(test.tolist())))
    val = rest[evenly(labels[rest], 180, mix(0x50A, 180))]
    digits = data.load("digits")
    assert digits.val is not None
    assert digits.val.rows is not None
    assert digits.test.rows is not None
    assert torch.equal(digits.test.rows, test)
    assert torch.equal(digits.val.rows, val)


@given(
    holdout=st.one_of(st.none(), st.integers(0, 300)),
    limit=st.one_of(st.none(), st.integers(0, 200)),
    own=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_splits_never_overlap(holdout: int | None, limit: int | None, own: bool) -> None:
    parts = split(dataset(val=300 if own else None), holdout=holdout, limit_train=limit)
    train, held, test = (set(read(part)) for part in (parts.train, parts.holdout, parts.test))
    assert len(train) == len(parts.train)
    assert not train & held
    assert not train & test
    assert not held & test


def test_default_holdout() -> None:
    assert len(split(dataset(train=500)).holdout) == 50
    assert len(split(dataset(train=20_000)).holdout) == 1000
    own = split(dataset(val=80))
    assert len(own.holdout) == 80
    assert len(own.train) == 500


def test_holdout_zero_trains_on_every_training_image() -> None:
    for val in (None, 80):
        parts = split(dataset(val=val), holdout=0)
        assert len(parts.train) == 500
        assert len(parts.holdout) == 0


def test_the_held_out_images_are_watched() -> None:
    for val in (None, 80):
        parts = split(dataset(val=val))
        assert parts.watched is parts.holdout
        assert parts.watched_name == "holdout"


@pytest.mark.parametrize("val", [None, 80])
def test_without_held_out_images_a_tenth_of_the_training_images_is_watched(val: int | None) -> None:
    parts = split(dataset(val=val), holdout=0)
    assert parts.watched_name == "training"
    assert set(read(parts.watched)) < set(read(parts.train))
    assert parts.watched.labels.bincount().tolist() == [10] * 5
    assert read(parts.train) == read(split(dataset(), holdout=0).train)  # and trained on as before
    assert len(split(dataset(train=20_000), holdout=0).watched) == 1000
    limited = split(dataset(), holdout=0, limit_train=50)
    assert set(read(limited.watched)) < set(read(limited.train))
    assert len(limited.watched) == 5
    assert len(split(dataset(), holdout=0, limit_train=3).watched) == 1
    assert len(split(dataset(), holdout=0, limit_train=0).watched) == 0


def test_watched_training_images_have_test_size() -> None:
    train = ImageSet(torch.zeros(100, 8, 8, 3, dtype=torch.uint8), torch.zeros(100, dtype=torch.long))
    parts = split(Dataset("toy", train, train.center(6, 6), None, ("a",)), holdout=0)
    assert parts.watched.images.shape[1:3] == (6, 6)
    assert parts.train.images.shape[1:3] == (8, 8)


def test_the_same_images_whatever_else_is_asked() -> None:
    few = split(dataset(), holdout=100, limit_train=50, limit_test=20)
    many = split(dataset(), holdout=100, limit_train=300, limit_test=20)
    assert read(few.holdout) == read(many.holdout)
    assert read(few.test) == read(many.test)
    assert few.train.labels.bincount().tolist() == [10] * 5
    assert read(split(dataset(), limit_train=50).train) == read(split(dataset(), limit_train=50).train)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"holdout": 501}, "500 images, 501 were requested"),
        ({"holdout": 100, "limit_train": 401}, "400 images, 401"),
        ({"limit_test": 101}, "100 images, 101"),
        ({"limit_test": -1}, "100 images, -1"),
    ],
)
def test_too_much_is_refused_by_size(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        split(dataset(), **options)  # type: ignore[arg-type]


def test_larger_training_images_are_held_out_at_test_size() -> None:
    labels = torch.zeros(100, dtype=torch.long)
    train = ImageSet(torch.zeros(100, 8, 8, 3, dtype=torch.uint8), labels)
    parts = split(Dataset("toy", train, train.center(6, 6), None, ("a",)))
    assert parts.train.images.shape[1:3] == (8, 8)
    assert parts.holdout.images.shape[1:3] == (6, 6)


def test_digits_are_the_fixed_split() -> None:
    digits = data.load("digits")
    assert digits.val is not None
    sets = (digits.train, digits.val, digits.test)
    assert [len(part) for part in sets] == [1257, 180, 360]
    assert (digits.num_classes, digits.in_channels, digits.image_size) == (10, 1, (16, 16))
    for part in sets:
        counts = part.labels.bincount(minlength=10)
        assert counts.max() - counts.min() <= 0.06 * len(part)
    rows = torch.cat([part.rows for part in sets if part.rows is not None])
    assert sorted(rows.tolist()) == list(range(1797))
    assert int(digits.train.images.min()) == 0
    assert int(digits.train.images.max()) == 255


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'digits'"):
        data.load("digit")


def test_data_root(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("SORA_DATA", "/from/environment")
    assert data.data_root("/given").as_posix().endswith("/given")
    assert data.data_root().as_posix().endswith("/from/environment")
    monkeypatch.delenv("SORA_DATA")
    assert data.data_root().name == "sora"


def test_a_limit_shrinks_the_default_held_out_slice_in_proportion_and_keeps_the_training_images() -> None:
    dataset = data.load("digits")
    whole, fixed = data.split(dataset), data.split(dataset, holdout=180, limit_train=400)
    limited = data.split(dataset, limit_train=400)
    assert len(whole.holdout) == 180
    assert len(fixed.holdout) == 180  # asked for
    assert len(limited.holdout) == round(180 * 400 / len(whole.train))
    assert limited.train.rows is not None
    assert fixed.train.rows is not None
    assert torch.equal(limited.train.rows, fixed.train.rows)
    held = {split: set(parts.holdout.rows.tolist()) for split, parts in (("all", whole), ("few", limited))}
    assert held["few"] < held["all"]
    assert len(data.split(dataset, limit_train=20).holdout) == 10  # one per class at least
