"""The registry of data sets: one row per source, here and in docs/data.md, and sources of other packages."""

import re
from pathlib import Path

import pytest
import torch

from sora import data
from sora.cli import main
from sora.errors import UserError

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
# name as written, classes, channels, pixels on a side; None: depends on the user's images
SOURCES = [
    ("digits", 10, 1, 16),
    ("cifar10", 10, 3, 32),
    ("cifar100", 100, 3, 32),
    ("tinyimagenet", 200, 3, 64),
    ("imagenet100", 100, 3, 224),
    ("pathmnist", 9, 3, 28),
    ("tissuemnist", 8, 1, 28),
    ("folder:PATH", None, None, None),
    ("npz:PATH", None, None, None),
]


def test_names_are_the_sources_in_order() -> None:
    assert data.names() == [row[0] for row in SOURCES]


@pytest.mark.parametrize(("name", "classes", "channels", "pixels"), SOURCES)
def test_info(name: str, classes: int | None, channels: int | None, pixels: int | None) -> None:
    known = data.info(name)
    assert known.usage == name
    assert "\n" not in known.summary
    if classes is None:
        assert not known.counts
        assert f"`{name}`" in PAGE or f"--dataset {name}" in PAGE
        return
    [row] = re.findall(rf"\| `{name}` \|.*", PAGE)
    counts = [f"{known.counts[s]:,}" if s in known.counts else "-" for s in ("train", "val", "test")]
    assert " / ".join(counts) in row
    assert f"{pixels}x{pixels} {'grey' if channels == 1 else 'colour'}, {classes} classes" in known.summary
    assert {"train", "test"} <= known.counts.keys() <= {"train", "val", "test"}


@pytest.mark.parametrize(
    "name", [row[0] for row in SOURCES if (known := data.info(row[0])).packed is None and not known.argument]
)
def test_built_in_sources_load_as_announced(name: str) -> None:
    loaded, [row] = data.load(name), [row for row in SOURCES if row[0] == name]
    assert {split: len(images) for split, images in loaded.splits.items()} == data.info(name).counts
    assert (loaded.num_classes, loaded.in_channels, loaded.image_size) == (row[1], row[2], (row[3], row[3]))


def test_info_accepts_names_with_an_argument() -> None:
    assert data.info("folder:photos?size=64") is data.info("folder:PATH")
    for wrong in ("cifar", "cifar10:x", "", "fodler:x"):
        with pytest.raises(UserError, match="unknown data set"):
            data.info(wrong)


def stripes(width: int) -> data.Dataset:
    images = torch.zeros(20, 8, 8, 1, dtype=torch.uint8)
    images[:, :, ::width] = 255
    part = data.ImageSet(images, torch.arange(20) % 2)
    return data.Dataset("stripes", part, part, None, ("a", "b"))


def test_a_registered_source_is_loaded_listed_and_shown(tmp_path: Path, capsys) -> None:
    roots: list[Path] = []

    @data.register("stripes", summary="black and white stripes", counts={"train": 20, "test": 20})
    def load(root: Path) -> data.Dataset:
        roots.append(root)
        return stripes(2)

    assert data.names()[-1] == "stripes"
    assert len(data.load("stripes", tmp_path).train) == 20
    assert len(data.get("stripes", tmp_path).test) == 20
    assert roots == [tmp_path, tmp_path]
    assert data.check("stripes").problems == []
    assert data.inventory()[-1] == data.StoredDataset("stripes", {"train": 20, "test": 20}, 0.0, "built in")
    for arguments in (["list", "data"], ["show", "stripes"], ["data", "list"]):
        assert main(arguments) == 0
        assert "stripes" in capsys.readouterr().out
    with pytest.raises(UserError, match="data set 'stripes' is already registered"):
        data.register("stripes", summary="again")(load)


def test_a_source_may_take_an_argument() -> None:
    def check(text: str) -> None:
        if not text.isdecimal():
            raise UserError(f"{text!r} is not a width")

    @data.register("stripes", argument="WIDTH", check_argument=check, summary="stripes")
    def load(root: Path, width: str) -> data.Dataset:
        return stripes(int(width))

    assert data.names()[-1] == "stripes:WIDTH"
    assert data.load("stripes:4").train.images[0, 0, :, 0].tolist() == [255, 0, 0, 0] * 2
    with pytest.raises(UserError, match="must be written stripes:WIDTH"):
        data.load("stripes")
    with pytest.raises(UserError, match="'wide' is not a width"):
        data.check_name("stripes:wide")


def test_a_registered_source_may_be_packed(tmp_path: Path) -> None:
    @data.register_packed(
        "stripes", summary="stripes", counts={"train": 20, "test": 20}, accepts="a file with a number"
    )
    def convert(path: Path, builder: data.Builder) -> None:
        part = stripes(int((path / "width").read_text())).train
        for split in ("train", "test"):
            builder.add(split, data.Arrays(part.images.numpy(), part.labels.numpy()))
        builder.finish(["a", "b"])

    with pytest.raises(UserError, match=r"stripes is not in .*--from FILE_OR_DIR` .a file with a number"):
        data.load("stripes")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "width").write_text("4")
    assert data.get("stripes", given=tmp_path / "mine").folder == tmp_path / "data" / "stripes"
    assert data.check("stripes").problems == []
    assert torch.equal(data.load("stripes").train.images, stripes(4).train.images)


def test_data_sets_print_as_one_line() -> None:
    digits = data.load("digits")
    sizes = ", ".join(f"{name} {len(images)}" for name, images in digits.splits.items())
    assert repr(digits) == f"Dataset(digits: {sizes}; 16x16x1, 10 classes)"
    assert repr(digits.test) == f"ImageSet({len(digits.test)} images of 16x16x1)"
    assert "\n" not in repr(data.split(digits, holdout=10))
