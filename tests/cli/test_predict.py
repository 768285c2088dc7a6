"""`sora predict`: single images, clean and attacked."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import sora as package
from sora import data
from sora.data.image_files import decode
from sora.runs import RunFolder
from sora.threat import threat


def files(folder, count=4):
    images = data.load("digits").test
    pixels = images.gather(torch.arange(count))[:, 0].numpy()
    paths = [folder / f"{k}.png" for k in range(count)]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image).save(path)
    return paths, torch.from_numpy(pixels.astype(np.float32))[:, None] / 255


def test_class_probability_and_whether_an_attack_flips_it(sora, run, tmp_path) -> None:
    paths, x = files(tmp_path)
    answers = sora.json("predict", run, *paths, "--threads", "1")
    model = package.load(run)
    share, predicted = model(x).softmax(1).max(1)
    assert [int(answer["class"]) for answer in answers] == predicted.tolist()
    assert [answer["probability"] for answer in answers] == pytest.approx(share.tolist(), abs=1e-5)
    adversarial = package.attacks.create("pgd10")(model, x, predicted, threat("linf", "0.15"), 0)
    after = model(adversarial).argmax(1)
    assert [answer["flips"] for answer in answers] == (after != predicted).tolist()
    assert {answer["eps"] for answer in answers} == {0.15}
    calm = sora.json("predict", run, *paths, "--eps", "0")
    assert not any(answer["flips"] for answer in calm)
    done = sora("predict", run, *paths[:2], "--threads", "1")
    stored = RunFolder(run).read_summary()["warnings"]
    assert done.err == "".join(f"sora: warning: {text}\n" for text in stored)
    assert any("for everything" in text for text in stored)
    for word in ("0.png", "1.png", "under pgd10, linf 0.15", "%"):
        assert word in done.out


def test_one_bad_file_does_not_hide_the_others(sora, run, tmp_path) -> None:
    paths, _ = files(tmp_path, 2)
    given = (paths[0], tmp_path / "nope.png", tmp_path, paths[1])
    done = sora("predict", run, *given, "--threads", "1", code=2)
    assert done.err.count("\n") == 1
    assert "0.png" in done.out
    assert "1.png" in done.out
    assert "nope.png' does not exist" in done.err
    assert f"'{tmp_path}' is a folder" in done.err
    done = sora("predict", run, *given, "--threads", "1", "--json", code=2)
    assert [answer["image"] for answer in json.loads(done.out)] == [str(path) for path in paths]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "missing: IMAGE"),
        ("0.png --attack clean", "clean changes no image"),
        ("0.png --threads -1", "--threads is -1; allowed: 0 to"),
        ("x.png", "x.png' does not exist"),
        ("text.png", "text.png: not an image"),
    ],
)
def test_a_request_without_an_answer_is_refused(arguments, message, sora, run, tmp_path, monkeypatch) -> None:
    files(tmp_path, 1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.png").write_text("text")
    sora.refuse(message, "predict", run, *arguments.split())


def trained_on(sora, folder, height, width):
    """A run on random images of three classes, the first of which is in x.png; and the images."""
    images = np.random.default_rng(0).integers(0, 256, (30, height, width, 3), dtype=np.uint8)
    names = [f"{split}_{kind}" for split in ("train", "test") for kind in ("images", "labels")]
    np.savez(folder / "own.npz", **dict(zip(names, 2 * (images, np.arange(30) % 3), strict=True)))
    flags = "--epochs 1 --batch-size 30 --width 4 --set model.stages=1 --holdout 0 --attacks clean --quiet"
    data_set = f"npz:{folder / 'own.npz'}"
    sora("train", "--dataset", data_set, *flags.split(), "--threads", "1", "--out", folder / "own")
    Image.fromarray(images[0]).save(folder / "x.png")
    return folder / "own", images


def test_autoattack_on_few_classes_has_the_name_it_has_in_evaluate(sora, tmp_path) -> None:
    own, _ = trained_on(sora, tmp_path, 8, 8)
    (answer,) = sora.json("predict", own, tmp_path / "x.png", "--attack", "aa", "--eps", "0")
    assert answer["attack"] == "aa-reduced"


def test_a_model_for_images_that_are_not_square_takes_them_as_they_are(sora, tmp_path) -> None:
    own, images = trained_on(sora, tmp_path, 8, 12)
    (answer,) = sora.json("predict", own, tmp_path / "x.png", "--threads", "1")
    x = torch.from_numpy(images[:1]).permute(0, 3, 1, 2) / 255
    assert answer["probability"] == pytest.approx(package.load(own)(x).softmax(1).max().item(), abs=1e-5)
    Image.fromarray(images[0, :, :8]).save(tmp_path / "square.png")
    message = "square.png: 8x8 pixels; the model was trained on 12x8: resize it"
    sora.refuse(message, "predict", own, tmp_path / "square.png", "--threads", "1")


@pytest.mark.parametrize("stored", [20, None])
def test_an_image_is_cut_as_those_of_a_data_set_that_is_stored_larger(stored, sora, run, tmp_path) -> None:
    """As imagenet100, which is stored at 256 pixels and tested on the central 224."""
    summary = json.loads((run / "summary.json").read_text())
    summary.pop("blake2b")  # which would give the change away
    height, width = summary["data"]["image_size"]
    assert summary["data"].pop("stored_size") == [height, width]
    if stored:
        summary["data"]["stored_size"] = [stored, stored]
    (run / "summary.json").write_text(json.dumps(summary))
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50), dtype=np.uint8)).save(
        tmp_path / "x.png"
    )
    (answer,) = sora.json("predict", run, tmp_path / "x.png", "--threads", "1")
    pixels = decode(tmp_path / "x.png", size=stored or height, mode="grey")
    margin = (len(pixels) - height) // 2
    pixels = pixels[margin : margin + height, margin : margin + width]
    x = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None] / 255
    assert answer["probability"] == pytest.approx(package.load(run)(x).softmax(1).max().item(), abs=1e-5)
