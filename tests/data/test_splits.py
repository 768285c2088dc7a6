import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sora import data
from sora.data import Dataset, ImageSet, split, stratified
from sora.errors import UserError

BALANCED, UNEVEN = torch.arange(50_000) % 10, torch.arange(999) ** 2 % 7


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


def test_views_select_without_copying_and_gather_is_channels_last() -> None:
    whole = numbered(20)
    view = whole.subset(torch.tensor([3, 5, 7, 11])).subset(torch.tensor([2, 0]))
    assert read(view) == [7, 3]
    assert view.labels.tolist() == [2, 3]
    assert view.images.data_ptr() == whole.images.data_ptr()
    images = ImageSet(torch.zeros(6, 4, 5, 3, dtype=torch.uint8), torch.zeros(6, dtype=torch.long))
    batch = images.gather(torch.tensor([4, 1]))
    assert batch.shape == (2, 3, 4, 5)
    assert batch.dtype == torch.uint8
    assert batch.is_contiguous(memory_format=torch.channels_last)
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
@settings(max_examples=50)
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


def digest(positions: torch.Tensor) -> str:
    return hashlib.sha256(positions.numpy().tobytes()).hexdigest()[:12]


@pytest.mark.parametrize(
    ("labels", "count", "expected"),
    [
        (BALANCED, 1, "42dc5d93763d"),
        (BALANCED, 1000, "6846c24e97fd"),
        (BALANCED, 20_000, "68bd7ae93037"),
        (BALANCED, 49_999, "0ae89a31391b"),
        (UNEVEN, 5, "0cc8d43db92c"),
        (UNEVEN, 100, "3cfff4ccdda6"),
        (UNEVEN, 500, "9c90c8dfe255"),
    ],
)
def test_the_images_chosen_are_those_of_earlier_versions(labels, count, expected) -> None:
    assert digest(stratified(labels, count, count + 3)) == expected


def test_the_splits_of_digits_are_those_of_earlier_versions() -> None:
    digits = data.load("digits")
    assert digits.val is not None
    sets = (digits.train, digits.val, digits.test)
    rows = [part.rows for part in sets if part.rows is not None]
    assert [digest(part) for part in rows] == ["72b36811e039", "a33ee6df12fb", "532aba26dcfa"]
    assert sorted(torch.cat(rows).tolist()) == list(range(1797))
    for part in sets:
        counts = part.labels.bincount(minlength=10)
        assert counts.max() - counts.min() <= 0.06 * len(part)
    assert int(digits.train.images.min()) == 0
    assert int(digits.train.images.max()) == 255


@given(
    holdout=st.one_of(st.none(), st.integers(0, 300)),
    limit=st.one_of(st.none(), st.integers(0, 200)),
    own=st.booleans(),
)
@settings(max_examples=30)
def test_splits_never_overlap(holdout: int | None, limit: int | None, own: bool) -> None:
    parts = split(dataset(val=300 if own else None), holdout=holdout, limit_train=limit)
    numbers = [*read(parts.train), *read(parts.holdout), *read(parts.test)]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(
    ("sizes", "holdout", "expected"),
    [
        ({"train": 500}, None, (450, 50)),
        ({"train": 20_000}, None, (19_000, 1000)),
        ({"val": 80}, None, (500, 80)),
        ({}, 0, (500, 0)),
        ({"val": 80}, 0, (500, 0)),
    ],
)
def test_how_many_images_are_held_out_and_watched(sizes, holdout, expected) -> None:
    parts = split(dataset(**sizes), holdout=holdout)
    assert (len(parts.train), len(parts.holdout)) == expected
    assert (parts.watched is parts.holdout) == (parts.watched_name == "holdout") == (expected[1] > 0)


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


def test_held_out_images_have_the_test_size_and_are_the_same_whatever_else_is_asked() -> None:
    train = ImageSet(torch.zeros(100, 8, 8, 3, dtype=torch.uint8), torch.zeros(100, dtype=torch.long))
    large = Dataset("toy", train, train.center(6, 6), None, ("a",))
    parts, everything = split(large), split(large, holdout=0)
    assert parts.train.images.shape[1:3] == everything.train.images.shape[1:3] == (8, 8)
    assert parts.holdout.images.shape[1:3] == everything.watched.images.shape[1:3] == (6, 6)
    few = split(dataset(), holdout=100, limit_train=50, limit_test=20)
    many = split(dataset(), holdout=100, limit_train=300, limit_test=20)
    assert read(few.holdout) == read(many.holdout)
    assert read(few.test) == read(many.test)
    assert few.train.labels.bincount().tolist() == [10] * 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"holdout": 501}, "500 images, 501 were requested"),
        ({"holdout": 100, "limit_train": 401}, "400 images, 401"),
        ({"limit_test": 101}, "100 images, 101"),
        ({"limit_test": -1}, "100 images, -1"),
    ],
)
def test_too_much_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        split(dataset(), **options)  # type: ignore[arg-type]


def test_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORA_DATA", "/from/environment")
    assert data.data_root("/given").as_posix().endswith("/given")
    assert data.data_root().as_posix().endswith("/from/environment")
    monkeypatch.delenv("SORA_DATA")
    assert data.data_root().name == "sora"


def test_a_limit_shrinks_the_default_held_out_slice_in_proportion_and_keeps_the_training_images() -> None:
    toy = dataset(val=80)
    whole, limited, fixed = split(toy), split(toy, limit_train=250), split(toy, holdout=80, limit_train=250)
    assert (len(whole.holdout), len(limited.holdout), len(fixed.holdout)) == (80, 40, 80)
    assert read(limited.train) == read(fixed.train)
    assert set(read(limited.holdout)) < set(read(whole.holdout))
    assert len(split(toy, limit_train=20).holdout) == 5  # one per class at least
