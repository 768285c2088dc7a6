"""`folder:` and `npz:`."""

import logging
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from sora import data
from sora.cli import main
from sora.data import Builder, _store
from sora.data.builder import GrowingArray
from sora.errors import UserError
from tests.data import formats
from tests.data.helpers import pixels


def fill(folder: Path, classes: dict[str, int], *shape: int, start: int = 0) -> None:
    """`classes` maps a name to how many pictures it has; each is one shade."""
    for c, (name, count) in enumerate(classes.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            shade = np.full(shape or (8, 8, 3), 50 * c + start + i, np.uint8)
            (folder / name / f"{i:03}.png").write_bytes(formats.png(shade))


def one_line(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        data.load(name)
    assert "\n" not in str(caught.value)


def test_train_val_and_test_folders_and_val_alone_as_the_test_set(tmp_path: Path) -> None:
    for split, count in (("train", 4), ("val", 2), ("test", 1)):
        fill(tmp_path / "p" / split, {"dog": count, "ant": count})
    (tmp_path / "p" / "train" / "dog" / "readme.txt").write_text("not a picture, and not taken for one")
    (tmp_path / "p" / "train" / ".hidden").mkdir()
    found = data.load(f"folder:{tmp_path / 'p'}")
    assert found.classes == ("ant", "dog")
    assert found.val is not None
    assert [len(found.train), len(found.val), len(found.test)] == [8, 4, 2]
    batches = list(data.Loader(found.train, 3, data.Augment.parse(("crop:1", "flip")), seed=0).epoch(0))
    assert sum(len(batch.y) for batch in batches) == 8
    assert all(batch.x.min() >= 0 and batch.x.max() <= 1 for batch in batches)
    assert found.train.labels.tolist() == [0] * 4 + [1] * 4
    assert pixels(found.train)[:, 0, 0, 0].tolist() == [50, 51, 52, 53, 0, 1, 2, 3]
    fill(tmp_path / "q" / "train", {"a": 3, "b": 3})
    fill(tmp_path / "q" / "validation", {"b": 1})
    two = data.load(f"folder:{tmp_path / 'q'}")
    assert two.val is None
    assert two.test.labels.tolist() == [1]


def test_class_folders_alone_are_split_by_a_constant_seed(tmp_path: Path) -> None:
    fill(tmp_path / "p", {"a": 20, "b": 10, "c": 5})
    found = data.load(f"folder:{tmp_path / 'p'}")
    assert found.test.labels.bincount().tolist() == [4, 2, 1]
    assert found.train.labels.bincount().tolist() == [16, 8, 4]
    shades = [set(pixels(part)[:, 0, 0, 0].tolist()) for part in (found.train, found.test)]
    assert not shades[0] & shades[1]
    again = data.load(f"folder:{tmp_path / 'p'}", root=tmp_path / "elsewhere")
    assert np.array_equal(pixels(again.test), pixels(found.test))


def test_a_folder_is_decoded_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "p", {"a": 5, "b": 5})
    data.load(f"folder:{tmp_path / 'p'}")
    monkeypatch.setattr(Builder, "stream", None)
    first = data.load(f"folder:{tmp_path / 'p'}")
    monkeypatch.undo()
    monkeypatch.setenv("SORA_DATA", str(tmp_path / "data"))
    fill(tmp_path / "p", {"a": 5, "b": 5}, start=100)
    os.utime(tmp_path / "p" / "a" / "000.png", ns=(1, 1))
    second = data.load(f"folder:{tmp_path / 'p'}")
    assert np.array_equal(pixels(second.train), pixels(first.train) + 100)
    assert len(list((tmp_path / "data").glob("p-*"))) == 1  # the old copy is gone


def test_an_edited_image_is_decoded_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its size and the time of its content stay; damage in the cache is an error."""
    fill(tmp_path / "p", {"a": 5, "b": 5})
    name, file = f"folder:{tmp_path / 'p'}", tmp_path / "p" / "a" / "5.ppm"
    file.write_bytes(b"P6 8 8 255\n" + bytes(192))
    assert main(["data", "check", name]) == 0
    info = file.stat()
    file.write_bytes(b"P6 8 8 255\n" + b"\x09" * 192)
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))
    loaded = data.load(name)
    assert 9 in np.concatenate([pixels(loaded.train), pixels(loaded.test)])[:, 0, 0, 0]
    [cached] = (tmp_path / "data").glob("p-*/test_images.npy")
    cached.write_bytes(cached.read_bytes()[:-1] + b"\x07")
    capsys.readouterr()
    assert main(["data", "check", name]) == 1
    assert "is damaged (test_images.npy has changed since it was built)" in capsys.readouterr().err


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    fill(tmp_path / "train", {"a": 4, "b": 4})
    fill(tmp_path / "test", {"a": 1, "b": 1})
    return tmp_path


def test_unreadable_pictures(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    (photos / "train" / "b" / "bad.png").write_text("this is not a png")
    one_line(f"folder:{photos}", r"train/b/bad.png: not an image; .*\?skip-bad=N")
    with caplog.at_level(logging.WARNING):
        found = data.load(f"folder:{photos}?skip-bad=1")
    assert "unreadable images left out of train (1): " in caplog.text
    assert "bad.png" in caplog.text
    assert len(found.train) == 8
    assert found.train.labels.tolist() == [0] * 4 + [1] * 4
    assert pixels(found.train)[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 50, 51, 52, 53]
    assert len(data.split(found, holdout=2).train) == 6
    (photos / "train" / "a" / "000.png").write_bytes(b"")
    one_line(f"folder:{photos}?skip-bad=1", "train/b/bad.png")
    assert len(data.load(f"folder:{photos}?skip-bad=2").train) == 7


@pytest.mark.skipif(sys.platform != "linux", reason="needs file names that are not UTF-8")
def test_names_that_are_not_text(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strange = Path(os.fsdecode(bytes(photos) + b"/train/\xff"))
    shutil.copytree(photos / "train" / "a", strange)
    shutil.copytree(strange, photos / "test" / strange.name)
    next(strange.iterdir()).rename(strange / os.fsdecode(b"\xfe.png"))
    assert strange.name in data.load(f"folder:{photos}").classes
    assert main(["data", "check", f"folder:{photos}", "--json"]) == 0


@pytest.mark.parametrize(
    ("shape", "message", "fixes"),
    [
        ((20, 10, 3), "10x20 pixels in colour, but the first image has 8x8", {"size=6": (6, 6, 3)}),
        ((8, 8), "8x8 pixels in grey, but .* in colour", {"mode=rgb": (8, 8, 3), "mode=grey": (8, 8, 1)}),
    ],
)
def test_an_image_unlike_the_others(photos, shape, message, fixes) -> None:
    (photos / "train" / "b" / "odd.png").write_bytes(formats.png(np.full(shape, 9, np.uint8)))
    one_line(f"folder:{photos}", rf"odd.png: {message}.*\?size=N")
    for option, expected in fixes.items():
        assert data.load(f"folder:{photos}?{option}").train.images.shape == (9, *expected)
    assert len(data.load(f"folder:{photos}?skip-bad=1").train) == 8


def test_empty_and_unknown_classes(photos: Path) -> None:
    (photos / "train" / "c").mkdir()
    one_line(f"folder:{photos}", "train/c contains no images")
    (photos / "train" / "c").rmdir()
    fill(photos / "test", {"zebra": 1})
    one_line(f"folder:{photos}", "test/zebra is a class that the training set does not have")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder:nowhere", "nowhere is not a folder"),
        ("folder:train/a", "contains 0 class folders"),
        ("folder:", "must be written folder:PATH"),
        ("npz:", "must be written npz:PATH"),
        ("folder:.?sise=8", "unknown folder option 'sise'; did you mean 'size'"),
        ("folder:.?size=0", "size=0 is not a positive integer"),
        ("folder:.?mode=cmyk", "unknown mode 'cmyk'"),
        ("fodler:x", "unknown data set"),
        ("npz:loop", "is not a path: Symlink loop|does not exist"),  # the latter from Python 3.13 on
        ("folder:loop", "is not a path: Symlink loop|is not a folder"),
        ("npz:nothing.npz", "nothing.npz does not exist"),
        ("npz:hello.npz", "is not an npz file"),
    ],
)
def test_bad_places_and_options(photos: Path, name: str, message: str, monkeypatch) -> None:
    monkeypatch.chdir(photos)
    Path("loop").symlink_to("loop")
    Path("hello.npz").write_text("hello")
    one_line(name, message)


def arrays(**changes: np.ndarray) -> dict[str, np.ndarray]:
    made = {
        "x_train": formats.noise(6, 8, 8, 3),
        "y_train": np.arange(6) % 3,
        "x_test": formats.noise(3, 8, 8, 3, seed=1),
        "y_test": np.arange(3),
    }
    return {**made, **changes}


def save(tmp_path: Path, tables: dict[str, np.ndarray]) -> str:
    (tmp_path / "x.npz").write_bytes(formats.npz(**tables))
    return f"npz:{tmp_path / 'x.npz'}"


def test_npz_by_both_spellings_with_class_names_and_in_grey(tmp_path: Path) -> None:
    made = arrays()
    found = data.load(save(tmp_path, made))
    assert np.array_equal(pixels(found.train), made["x_train"])
    assert found.test.labels.tolist() == [0, 1, 2]
    assert found.classes == ("0", "1", "2")
    assert not list(tmp_path.glob("data/*"))  # small ones stay in memory
    (tmp_path / "x.npz").write_bytes(formats.medmnist(4, 1))
    found = data.load(f"npz:{tmp_path / 'x.npz'}")
    assert found.val is not None
    assert (found.in_channels, found.num_classes, len(found.val)) == (1, 4, 4)
    grey = {"x_train": formats.noise(6, 8, 8), "x_test": formats.noise(3, 8, 8)}
    found = data.load(save(tmp_path, arrays(classes=np.array(["a", "b", "c"]), **grey)))
    assert (found.classes, found.in_channels) == (("a", "b", "c"), 1)


def test_large_npz_goes_through_a_mapped_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_store, "MEMORY_BUDGET", 100)
    made = arrays()
    found = data.load(save(tmp_path, made))
    assert np.array_equal(pixels(found.train), made["x_train"])
    assert len(list((tmp_path / "data").glob("x-*"))) == 1
    monkeypatch.setattr("sora.data.sources.npz.ImageArchive", None)  # packed once, not read again
    assert np.array_equal(pixels(data.load(f"npz:{tmp_path / 'x.npz'}").train), made["x_train"])


def test_large_npz_is_read_in_blocks_and_goes_on_where_it_stopped(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(_store, "MEMORY_BUDGET", 100)
    monkeypatch.setattr("sora.data.npz._BLOCK", 1000)  # five images of 192 bytes
    made = arrays(x_train=formats.noise(40, 8, 8, 3), y_train=np.arange(40) % 3)
    name = save(tmp_path, made)
    sizes: list[int] = []
    append = GrowingArray.append

    def interrupted(self: GrowingArray, rows: np.ndarray) -> None:
        sizes.append(len(rows))
        if len(sizes) == 4:
            raise KeyboardInterrupt
        append(self, rows)

    monkeypatch.setattr(GrowingArray, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        data.load(name)
    found = data.load(name)
    # Images and labels in turn: 5 written, 35 missing, the test set.
    assert sizes == [5] * 4 + [5] * 14 + [3] * 2
    assert np.array_equal(pixels(found.train), made["x_train"])
    assert found.train.labels.tolist() == made["y_train"].tolist()
    assert np.array_equal(pixels(found.test), made["x_test"])


@pytest.mark.parametrize("budget", [100, 1 << 30])
def test_npz_in_fortran_order(tmp_path: Path, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_store, "MEMORY_BUDGET", budget)
    made = arrays(x_train=np.asfortranarray(formats.noise(6, 8, 8, 3)))
    assert np.array_equal(pixels(data.load(save(tmp_path, made)).train), made["x_train"])


@pytest.mark.parametrize("budget", [100, 1 << 30])
@pytest.mark.parametrize("damage", ["bytes", "cut", "compression"])
def test_damaged_npz(tmp_path: Path, budget: int, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_store, "MEMORY_BUDGET", budget)
    content = bytearray(formats.npz(**arrays(x_train=formats.noise(60, 8, 8, 3), y_train=np.arange(60) % 3)))
    if damage == "bytes":
        content[3000:3100] = b"\xff" * 100
    elif damage == "cut":
        del content[3000:3100]
    else:
        at = content.index(b"PK\x01\x02") + 10
        content[at : at + 2] = b"\x63\x00"
    (tmp_path / "x.npz").write_bytes(content)
    one_line(f"npz:{tmp_path / 'x.npz'}", r"x.npz (is not an npz|is not a readable|refused)")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y_train": np.arange(6) * 10**12}, "labels 0..5000000000000, more classes than training images"),
        ({"x_train": np.zeros((6, 8, 8, 3), np.float32)}, "train images are float32 .* expected uint8"),
        ({"x_train": np.zeros((6, 3, 8, 8), np.uint8)}, r"train images are uint8 \(6, 3, 8, 8\)"),
        ({"y_train": np.arange(5) % 3}, r"train labels are int64 \(5,\) for 6 images"),
        ({"y_train": np.arange(6) / 2}, "train labels are float64"),
        ({"y_train": np.zeros(6, int)}, "class '1' has no training image"),
        ({"y_test": np.arange(3) - 1}, "labels -1..2"),
        ({"classes": np.array(["a", "b"])}, r"labels 0..2; expected 0..1"),
        ({"x_test": np.zeros((0, 8, 8, 3), np.uint8), "y_test": np.zeros(0, int)}, "for 0 images"),
    ],
)
def test_bad_npz(tmp_path: Path, changes: dict[str, np.ndarray], words: str) -> None:
    one_line(save(tmp_path, arrays(**changes)), words)


@pytest.mark.parametrize("names", [("Training", "Testing"), ("TRAIN", "Test")])
def test_splits_are_recognised_in_any_case(tmp_path: Path, names: tuple[str, str]) -> None:
    fill(tmp_path / names[0], {"cat": 4, "dog": 4})
    fill(tmp_path / names[1], {"cat": 2, "dog": 2})
    loaded = data.load(f"folder:{tmp_path}")
    assert (loaded.classes, len(loaded.train), len(loaded.test)) == (("cat", "dog"), 8, 4)


def test_splits_of_different_sizes_and_other_keys_are_an_error(tmp_path: Path) -> None:
    one_line(save(tmp_path, {"images": np.zeros(3)}), "contains images; expected train_images train_labels")
    fill(tmp_path / "train", {"cat": 4, "dog": 4}, 8, 8, 3)
    fill(tmp_path / "test", {"cat": 2, "dog": 2}, 12, 12, 3)
    one_line(f"folder:{tmp_path}", "different sizes: train 8x8x3, test 12x12x3")
    one_line(save(tmp_path, arrays(x_test=formats.noise(3, 9, 9, 3))), "train 8x8x3, test 9x9x3")


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (("uno", "dos"), "dos, uno all contain the folders cat, dog; .* train, val"),
        (("train", "val", "validation"), "val and validation, which mean the same"),
    ],
)
def test_folders_that_are_not_the_expected_splits(tmp_path, folders: tuple[str, ...], message: str) -> None:
    for name in folders:
        fill(tmp_path / name, {"cat": 4, "dog": 4})
    one_line(f"folder:{tmp_path}", message)


def test_a_class_may_be_called_train_but_images_directly_in_splits_have_no_class(tmp_path: Path) -> None:
    fill(tmp_path / "p", {"bus": 5, "car": 5, "train": 5})
    assert data.load(f"folder:{tmp_path / 'p'}").classes == ("bus", "car", "train")
    fill(tmp_path / "q", {"train": 5, "test": 5})
    one_line(f"folder:{tmp_path / 'q'}", "train contains 0 class folders")
