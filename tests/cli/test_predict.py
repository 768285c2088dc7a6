"""`sora predict`: single images, clean and attacked."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import sora as package
from sora import data
from sora.threat import threat


@pytest.fixture
def run(sora, tiny, tmp_path):
    done = sora("train", *tiny, "--attacks", "clean", "--out", tmp_path / "a", "--quiet")
    assert done.code == 0, done.err
    return tmp_path / "a"


def files(folder, count=4):
    images = data.load("digits").test
    pixels = images.gather(torch.arange(count))[:, 0].numpy()
    paths = [folder / f"{k}.png" for k in range(count)]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image).save(path)
    return paths, torch.from_numpy(pixels.astype(np.float32))[:, None] / 255


def test_class_probability_and_whether_an_attack_flips_it(sora, run, tmp_path) -> None:
    paths, x = files(tmp_path)
    done = sora("predict", run, *paths, "--json", "--threads", "1")
    assert done.code == 0, done.err
    answers = json.loads(done.out)
    model = package.load(run)
    share, predicted = model(x).softmax(1).max(1)
    assert [int(answer["class"]) for answer in answers] == predicted.tolist()
    assert [answer["probability"] for answer in answers] == pytest.approx(share.tolist(), abs=1e-5)
    adversarial = package.attacks.create("pgd10")(model, x, predicted, threat("linf", "0.15"), 0)
    after = model(adversarial).argmax(1)
    assert [answer["flips"] for answer in answers] == (after != predicted).tolist()
    assert {answer["eps"] for answer in answers} == {0.15}
    calm = json.loads(sora("predict", run, *paths, "--eps", "0", "--json").out)
    assert not any(answer["flips"] for answer in calm)


def test_the_table_names_files_and_radius(sora, run, tmp_path) -> None:
    paths, _ = files(tmp_path, 2)
    done = sora("predict", run, *paths, "--threads", "1")
    assert done.code == 0, done.err
    for word in ("0.png", "1.png", "under pgd10, linf 0.15", "%"):
        assert word in done.out


@pytest.mark.parametrize(("content", "message"), [(None, "does not exist"), ("text", "not an image")])
def test_a_bad_file_is_named_in_one_line(content, message, sora, run, tmp_path) -> None:
    if content:
        (tmp_path / "x.png").write_text(content)
    done = sora("predict", run, tmp_path / "x.png")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "x.png" in done.err
    assert message in done.err
