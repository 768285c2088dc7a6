import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sora._seeds import mix
from sora.data import Augment, Batch, ImageSet, Loader
from sora.errors import UserError

AUGMENT = Augment.parse(("crop:1", "flip"))


def images(n: int) -> ImageSet:
    pixels = torch.randint(
        0, 256, (n, 4, 4, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    return ImageSet(pixels, torch.arange(n) % 10)


def same(a: Batch, b: Batch) -> bool:
    return torch.equal(a.x, b.x) and torch.equal(a.y, b.y) and torch.equal(a.index, b.index)


def test_an_epoch_shows_every_image_once_and_batches_carry_their_transform() -> None:
    source = images(100)
    batches = list(Loader(source, 32, Augment.parse(()), seed=0).epoch(0))
    assert [len(b.y) for b in batches] == [32, 32, 32, 4]
    index = torch.cat([b.index for b in batches])
    assert sorted(index.tolist()) == list(range(100))
    assert index.tolist() != list(range(100))
    x = torch.cat([b.x for b in batches])
    assert torch.equal((x * 255).round().to(torch.uint8), source.gather(index))
    assert torch.equal(torch.cat([b.y for b in batches]), source.labels[index])
    source = images(40)
    for batch in Loader(source, 20, AUGMENT, seed=0).epoch(3):
        assert batch.x.dtype == torch.float32
        assert batch.x.is_contiguous(memory_format=torch.channels_last)
        assert batch.transform is not None
        assert torch.equal(
            (batch.x * 255).round().to(torch.uint8), batch.transform(source.gather(batch.index))
        )


@given(n=st.integers(2, 90), size=st.integers(1, 90))
@settings(max_examples=60)
def test_a_last_batch_of_one_joins_the_one_before(n: int, size: int) -> None:
    if size > n:
        return
    loader = Loader(images(n), size, Augment.parse(()), seed=0)
    sizes = [len(b.y) for b in loader.epoch(0)]
    assert len(sizes) == len(loader)
    assert sum(sizes) == n
    assert all(s == size for s in sizes[:-1])
    assert sizes[-1] == ((n - 1) % size + 1 if n % size != 1 or size == 1 else size + 1)


def test_the_papers_batch_counts() -> None:
    """CIFAR 391 batches, TinyImageNet 782, PathMNIST 704, TissueMNIST 1293."""
    for n, count in ((50_000, 391), (100_000, 782), (89_996, 704), (165_466, 1293)):
        pixels = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(n, 1, 1, 1)
        empty = ImageSet(pixels, torch.zeros(n, dtype=torch.long))
        assert len(Loader(empty, 128, AUGMENT, seed=0)) == count


@given(start=st.integers(0, 7), epoch=st.integers(0, 3), attempt=st.integers(0, 2))
@settings(max_examples=20)
def test_resuming_gives_the_same_batches(start: int, epoch: int, attempt: int) -> None:
    whole = list(Loader(images(100), 13, AUGMENT, seed=5).epoch(epoch, attempt))
    rest = list(Loader(images(100), 13, AUGMENT, seed=5).epoch(epoch, attempt, start))
    assert len(rest) == len(whole) - start
    assert all(same(a, b) for a, b in zip(whole[start:], rest, strict=True))


def test_seed_epoch_and_attempt_each_change_the_order_and_the_global_state_does_not() -> None:
    def order(seed: int, epoch: int, attempt: int) -> list[int]:
        torch.manual_seed(seed + 17)
        batches = Loader(images(50), 10, AUGMENT, seed).epoch(epoch, attempt)
        return torch.cat([b.index for b in batches]).tolist()

    orders = [order(0, 0, 0), order(1, 0, 0), order(0, 1, 0), order(0, 0, 1)]
    assert len({tuple(o) for o in orders}) == 4
    assert order(0, 0, 0) == orders[0]
    before = torch.get_rng_state()
    list(Loader(images(50), 10, AUGMENT, 0).epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


@given(n=st.integers(20, 80), size=st.integers(8, 20), world=st.integers(2, 4))
@settings(max_examples=30)
def test_processes_together_see_what_one_would(n: int, size: int, world: int) -> None:
    single = list(Loader(images(n), size, AUGMENT, seed=2).epoch(1))
    parts = [list(Loader(images(n), size, AUGMENT, 2, rank=r, world=world).epoch(1)) for r in range(world)]
    together = [torch.cat([p.index for p in group]) for group in zip(*parts, strict=True)]
    assert torch.equal(torch.cat(together), torch.cat([b.index for b in single]))
    if len(single) == len(parts[0]):
        for batch, group in zip(single, zip(*parts, strict=True), strict=True):
            assert torch.equal(batch.x, torch.cat([p.x for p in group]))
    for group in zip(*parts, strict=True):
        sizes = [len(p.y) for p in group]
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= 2


@pytest.mark.parametrize(("size", "world"), [(0, 1), (11, 1), (1, 2)])
def test_impossible_batch_sizes_are_refused(size: int, world: int) -> None:
    with pytest.raises(UserError, match=f"batch-size {size} must lie between {world}"):
        Loader(images(10), size, AUGMENT, seed=0, world=world)


def test_mix_is_fixed_and_tells_its_arguments_apart() -> None:
    assert mix(1, 23) != mix(12, 3)
    assert mix(1, 2) != mix(2, 1)
    assert mix(-1) != mix(1)
    assert 0 <= mix(2**80) < 2**63
    assert mix(0, 1, 2) == 4529435921577843265  # runs of older versions must resume as they began


@pytest.mark.parametrize(("n", "world"), [(21, 2), (31, 4), (64, 3)])
def test_the_smallest_share_of_a_batch(n: int, world: int) -> None:
    loaders = [Loader(images(n), 16, AUGMENT, 0, "cpu", rank, world) for rank in range(world)]
    for number, batches in enumerate(zip(*(loader.epoch(0) for loader in loaders), strict=True)):
        assert {loader.smallest_share(number) for loader in loaders} == {min(len(b.y) for b in batches)}
