import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from sora.data import Arrays, Builder, ImageFile, _store
from sora.data import builder as pack
from sora.data.image_files import decode
from sora.errors import RunError, UserError
from tests.data import formats
from tests.data.helpers import DAMAGE, damage_store


def arrays(n: int = 6, seed: int = 0) -> Arrays:
    return Arrays(formats.noise(n, 4, 4, 3, seed=seed), np.arange(n) % 2)


def fill(builder: Builder) -> None:
    builder.add("train", arrays())
    builder.add("test", arrays(2))
    builder.finish(["a", "b"])


def test_a_store_appears_only_when_complete(tmp_path: Path) -> None:
    def broken(builder: Builder) -> None:
        builder.add("train", arrays())
        assert not (tmp_path / "toy").exists()
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        pack.build(tmp_path, "toy", "origin", broken)
    assert not (tmp_path / "toy").exists()
    folder = pack.build(tmp_path, "toy", "origin", fill)
    found = _store.open_store(folder, "toy")
    assert np.array_equal(found.train.images.numpy(), arrays().images)
    assert found.classes == ("a", "b")
    assert not (tmp_path / "toy.part").exists()


def test_the_same_origin_is_built_once_and_another_replaces_it(tmp_path: Path) -> None:
    pack.build(tmp_path, "toy", "one", fill)
    pack.build(tmp_path, "toy", "one", lambda builder: pytest.fail("built again"))

    def other(builder: Builder) -> None:
        builder.add("train", arrays(seed=5))
        builder.add("test", arrays(2))
        builder.finish(["a", "b"])

    folder = pack.build(tmp_path, "toy", "two", other)
    assert np.array_equal(_store.open_store(folder, "toy").train.images.numpy(), arrays(seed=5).images)


@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_mapped_and_loaded_stores_are_the_same(tmp_path: Path, budget: int, monkeypatch) -> None:
    monkeypatch.setattr(_store, "MEMORY_BUDGET", budget)
    found = _store.open_store(pack.build(tmp_path, "toy", "x", fill), "toy")
    batch = found.train.gather(torch.tensor([4, 1]))
    assert np.array_equal(batch.permute(0, 2, 3, 1).numpy(), arrays().images[[4, 1]])
    before = (tmp_path / "toy" / "train_images.npy").read_bytes()
    found.train.images.zero_()  # a private copy: the file must not change
    assert (tmp_path / "toy" / "train_images.npy").read_bytes() == before


def pictures(n: int, stop: int | None = None) -> Iterator[ImageFile]:
    for i in range(n):
        if i == stop:
            raise KeyboardInterrupt
        yield ImageFile(f"{i}.png", formats.png(np.full((4, 4, 3), i % 250, np.uint8)), i % 2)


def test_packing_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "CHUNK", 16)
    starts: list[int] = []

    def attempt(stop: int | None) -> Path:
        def source(start: int) -> Iterator[ImageFile]:
            starts.append(start)
            return (p for i, p in enumerate(pictures(100, stop)) if i >= start)

        def fill(builder: Builder) -> None:
            builder.stream("train", 100, source, decode)
            builder.add("test", arrays(2))
            builder.finish(["a", "b"])

        return pack.build(tmp_path, "toy", "x", fill)

    with pytest.raises(KeyboardInterrupt):
        attempt(stop=70)
    for kind in ("images", "labels"):
        with (tmp_path / "toy.part" / f"train_{kind}.npy.part").open("ab") as file:
            file.write(b"half")  # a row that was being written
    folder = attempt(stop=None)
    assert starts == [0, 0, 0, 64]  # the first image gives the shape each time
    found = _store.open_store(folder, "toy")
    assert found.train.images[:, 0, 0, 0].tolist() == list(range(100))
    assert found.train.labels.tolist() == [i % 2 for i in range(100)]


def test_an_interrupted_build_of_something_else_is_dropped(tmp_path: Path) -> None:
    def broken(builder: Builder) -> None:
        builder.stream("train", 4, lambda start: pictures(4), decode)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack.build(tmp_path, "toy", "one", broken)
    found = _store.open_store(pack.build(tmp_path, "toy", "two", fill), "toy")
    assert len(found.train) == 6


@pytest.mark.parametrize("place", ["toy", "toy.part"])
@pytest.mark.parametrize("also", ["", "meta.json"])
def test_a_folder_of_somebody_else_is_never_replaced(tmp_path: Path, place: str, also: str) -> None:
    (tmp_path / place).mkdir()
    for name in filter(None, ["thesis.doc", also]):
        (tmp_path / place / name).write_text("years of work")
    with pytest.raises(UserError, match=rf"{place} is not a packed data set; move it elsewhere") as caught:
        pack.build(tmp_path, "toy", "x", fill)
    assert "\n" not in str(caught.value)
    assert (tmp_path / place / "thesis.doc").read_text() == "years of work"


def test_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    """As a build leaves it that was killed before its first file."""
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy.part").mkdir()
    assert len(_store.open_store(pack.build(tmp_path, "toy", "x", fill), "toy").train) == 6


def test_builds_wait_for_one_another(tmp_path: Path) -> None:
    """Threads here; tests/runs/test_lock.py has the same lock between processes."""
    built = []

    def slow(builder: Builder) -> None:
        built.append(builder)
        time.sleep(0.1)
        fill(builder)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: pack.build(tmp_path, "toy", "x", slow), range(3)))
    assert len(built) == 1


@pytest.mark.parametrize("damage", [*DAMAGE, "labels"])
def test_damaged_stores_are_one_line_errors(tmp_path: Path, damage: str) -> None:
    folder = pack.build(tmp_path, "toy", "x", fill)
    if damage == "labels":
        np.save(folder / "train_labels.npy", np.full(6, 7))
    else:
        damage_store(folder, damage)
    with pytest.raises(RunError, match="toy is damaged") as caught:
        _store.open_store(folder, "toy")
    assert "\n" not in str(caught.value)


def edit(file: Path) -> None:
    """Flip a bit of a pixel, label or class name; the file's size and the time of its content stay."""
    info, content = file.stat(), bytearray(file.read_bytes())
    content[-8 if file.suffix == ".npy" else content.index(b'"a"') + 1] ^= 1
    time.sleep(0.02)  # the clock of some file systems has ticks
    file.write_bytes(content)
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))


@pytest.mark.parametrize("budget", [0, 1 << 30])
@pytest.mark.parametrize("file", ["train_images.npy", "train_labels.npy", "test_images.npy", "meta.json"])
def test_a_changed_bit_is_noticed(tmp_path: Path, file: str, budget: int, monkeypatch) -> None:
    monkeypatch.setattr(_store, "MEMORY_BUDGET", budget)
    folder = pack.build(tmp_path, "toy", "x", fill)
    edit(folder / file)
    for _ in range(2):
        with pytest.raises(RunError, match=rf"toy is damaged \({file} (has changed|does not match)"):
            _store.open_store(folder, "toy")


def test_arrays_are_hashed_again_after_a_change_until_they_are_checked(tmp_path: Path, monkeypatch) -> None:
    folder, copy = pack.build(tmp_path, "toy", "x", fill), tmp_path / "copy"
    read: list[str] = []
    digest = _store.digest
    monkeypatch.setattr(_store, "digest", lambda path: read.append(path.name) or digest(path))
    _store.open_store(folder, "toy")
    assert not read
    meta = json.loads((folder / "meta.json").read_text())
    del meta["sha256"]  # as earlier versions wrote it
    (folder / "meta.json").write_text(json.dumps(meta))
    shutil.copytree(folder, copy)
    for place, arrays in ((folder, 4), (copy, 4), (copy, 4)):
        read.clear()
        before = (place / "verified").stat().st_ctime_ns
        _store.open_store(place, "toy")
        assert len(read) == arrays
        assert (place / "verified").stat().st_ctime_ns == before  # loading writes nothing
    (copy / "verified").write_bytes(b"\xff")
    with monkeypatch.context() as patch:
        patch.setattr("sora._files.Path.mkdir", Mock(side_effect=PermissionError))  # a read-only folder
        assert not _store.changed_arrays(copy, unread=False)
    _store.open_store(copy, "toy")
    assert len(read) == 3 * 4
    assert not _store.changed_arrays(copy, unread=False)
    _store.open_store(copy, "toy")
    assert len(read) == 4 * 4


def test_a_root_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="could not build"):
        pack.build(tmp_path / "file" / "root", "toy", "x", fill)
