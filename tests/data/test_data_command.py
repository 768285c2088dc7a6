"""`sora data`, as a user types it."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sora import data, models
from sora.figures import Figure, on_paper
from sora.runs import RunFolder
from tests.data import formats
from tests.data.conftest import Server
from tests.data.helpers import DAMAGE, damage_store, official


def test_get_list_check(server: Server, sora, tmp_path) -> None:
    content = formats.Cifar10().binary()
    counts = {"train": 15, "test": 3}
    official("cifar10", (server.serve("c.tar.gz", content), content), counts=counts, content={})
    printed = sora("data", "get", "cifar10").out
    assert printed == f"cifar10: 15 train + 3 test images, 10 classes; {tmp_path / 'data' / 'cifar10'}\n"

    entries = {entry["name"]: entry for entry in sora.json("data", "list")}
    assert entries["cifar10"]["images"] == counts
    assert entries["cifar10"]["where"] == str(tmp_path / "data" / "cifar10")
    assert entries["pathmnist"]["images"] == {}
    rows = {line.split()[0]: line for line in sora("data", "list").out.splitlines() if line.strip()}
    assert "< 1 MB" in rows["cifar10"]
    assert "not here" in rows["pathmnist"]
    assert "MB" not in rows["pathmnist"] + rows["digits"]  # nothing on disk

    # Three test images cannot show ten classes: the check says so, in one line and by its exit code.
    output = sora("data", "check", "cifar10", "--json", code=1)
    assert json.loads(output.out)["splits"]["train"]["images"] == 15
    assert output.err.startswith("sora: cifar10 failed the check: test has no image of")
    assert output.err.count("\n") == 1
    printed = sora("data", "check", "digits").out
    assert "digits: no problems" in printed
    assert "first" not in printed  # what programs compare is in the JSON


def test_get_tells_programs_what_is_where(sora, tmp_path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pathmnist.npz").write_bytes(formats.medmnist(9, 3))
    found = sora.json("data", "get", "pathmnist", "--from", tmp_path / "mine")
    store = tmp_path / "data" / "pathmnist"
    assert (found["name"], found["where"], found["classes"]) == ("pathmnist", str(store), 9)
    assert found["images"] == {"train": 27, "val": 9, "test": 9}
    assert found["megabytes"] == sum(file.stat().st_size for file in store.iterdir()) / 1e6
    there = ["--data-dir", tmp_path / "there"]
    sora("data", "get", "pathmnist", "--from", tmp_path / "mine", *there)
    assert "27 train" in sora("data", "list", *there).out
    path = tmp_path / "mine" / "pathmnist.npz"
    assert sora.json("data", "get", f"npz:{path}")["where"] == str(path)
    assert sora.json("data", "get", "digits")["images"] == data.inventory()[0].images
    expected = "digits: 1,257 train + 180 val + 360 test images, 10 classes; built in\n"
    assert sora("data", "get", "digits").out == expected


@pytest.mark.parametrize("damage", [*DAMAGE, "somebody's", "no counts"])
def test_list_opens_no_array_and_survives_a_damaged_store(damage, sora, tmp_path, monkeypatch) -> None:
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
    entries = {entry["name"]: entry for entry in sora.json("data", "list")}
    assert entries["pathmnist"]["damaged"]
    assert entries["pathmnist"]["images"] == {}
    assert entries["tissuemnist"]["damaged"] is None
    assert entries["tissuemnist"]["images"] == {"train": 24, "val": 8, "test": 8}
    printed = sora("data", "list").out
    assert "damaged: " in printed
    assert "24 train + 8 val + 8 test" in printed


def test_list_does_not_count_pictures_left_out(sora, tmp_path) -> None:
    for name in ("train/a/1", "train/a/2", "train/b/1", "test/a/1", "test/b/1"):
        file = tmp_path / "photos" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(formats.png(formats.noise(1, 8, 8, 3)[0]))
    (tmp_path / "photos" / "train" / "a" / "2.png").write_text("bad")
    data.load(f"folder:{tmp_path / 'photos'}?skip-bad=1")
    [photos] = [entry for entry in sora.json("data", "list") if entry["name"].startswith("photos-")]
    assert photos["images"] == {"train": 2, "test": 2}


def test_help_names_the_ways_to_get_data(sora) -> None:
    for command in (("data", "--help"), ("data",)):
        assert "get NAME --from FILE_OR_DIR" in sora(*command, code=2 * (len(command) == 1)).out


def test_show_draws_samples_and_distribution(sora, tmp_path) -> None:
    out = str(tmp_path / "new" / "d.png")
    shown = sora.json("data", "show", "digits", "--out", out)
    assert shown == {"out": out, "dataset": "digits", "shows": "samples and class distribution"}
    picture = np.asarray(Image.open(tmp_path / "new" / "d.png").convert("RGB"))
    assert picture.shape[0] > 400
    assert (picture == (0x4C, 0x72, 0xB0)).all(2).mean() > 0.1  # the bars
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["d.png"]


def test_show_what_an_attack_does(sora, tmp_path, monkeypatch) -> None:
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
    shown = sora.json("data", "show", "--run", run, "--out", out, "--images", "4")
    assert (shown["out"], shown["run"]) == (str(out), str(run))
    assert shown["shows"] == "sora on digits, FGSM linf 0.15"
    assert [image["class"] for image in shown["images"]] == ["0", "1", "2", "3"]
    assert {"clean", "perturbed"} < shown["images"][0].keys()
    panels: list[Any] = [panel for figure in drawn for panel in figure.panels]
    clean, perturbed, _ = torch.tensor([panel.items[0].pixels for panel in panels]).split(4)
    assert 0.1 * 255 < (perturbed - clean).abs().max() <= 0.15 * 255 + 1
    assert Image.open(out).size[1] > 300
