"""Names of classes, data sets and files are printed as they are; what would control a terminal is escaped."""

import io
import re

import numpy as np
import torch
from PIL import Image

from sora._console import Console
from sora._process import Escaping
from sora.cli._evaluate_tables import confusion_tables
from sora.evaluation import Evaluation
from sora.threat import Linf

CLASSES = ["[new]", "[/x]", ":car:", "\x1b[2J\x9bA\u202e"]  # style, its end, emoji, control codes
SHOWN = [*CLASSES[:3], r"\x1b"]  # a table cuts off what escapes add to a name


def test_names_that_look_like_markup(sora, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    folder = tmp_path / "[red]a[/y]"
    folder.mkdir(parents=True)  # its second bracket is in the name of a folder inside the first
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(30) % 4
    parts = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    np.savez(folder / "d.npz", **parts, classes=np.array(CLASSES))
    Image.fromarray(images[0]).save(folder / "x.png")
    flags = (
        "--epochs 1 --batch-size 30 --width 4 --set model.stages=1 --holdout 0 --attacks clean --threads 1"
    )
    name, run = f"npz:{folder / 'd.npz'}", folder / "run"
    trained = sora("train", "--dataset", name, *flags.split(), "--out", run)
    assert name in "".join(trained.out.split())  # the title of a narrow table is wrapped
    assert str(run) in trained.out
    attacks = ("--attacks", "clean,pgd2,pgd10", "--per-class", "--confusion", "clean", "--threads", "1")
    evaluated = sora("evaluate", run, *attacks)
    assert [evaluated.out.count(each) for each in SHOWN] == [3, 3, 3, 3]  # two rows and a column
    assert not set(evaluated.out) & {"\x1b", "\x9b", "\u202e"}
    assert f"images of {name}; {run / 'evaluation.json'}" in evaluated.out
    predicted = sora("predict", run, folder / "x.png", "--threads", "1")
    assert str(folder / "x.png") in predicted.out
    assert any(each in predicted.out for each in SHOWN)
    sora.refuse(r"\x1b[2J.png", "predict", run, folder / "\x1b[2J.png", "--threads", "1")


def test_only_the_console_itself_controls_a_terminal() -> None:
    """Colours stay: those of rich are written to the stream below the one that escapes."""
    terminal = io.StringIO()
    console = Console(file=Escaping(terminal), force_terminal=True, color_system="standard", highlight=False)
    console.print("\x1b[2J", style="red")
    print("\x1b[2J\r", file=Escaping(terminal))
    assert terminal.getvalue() == "\x1b[31m\\x1b[2J\x1b[0m\n\\x1b[2J\\r\n"


def test_a_large_confusion_matrix_is_printed_in_blocks_with_every_number() -> None:
    labels = torch.arange(400) % 20
    predictions = {"clean": (labels + labels // 7) % 20}
    evaluation = Evaluation(Linf(0.1), labels, 20, predictions, {"clean": {}})
    classes = [f"class {number}" for number in range(20)]
    console = Console(width=80, file=io.StringIO(), highlight=False)
    for table in confusion_tables(evaluation, "clean", classes, console.width):
        console.print(table)
    text = console.file.getvalue()
    assert "\u2026" not in text
    assert len(re.findall(r"\b20\b", text)) == 20
