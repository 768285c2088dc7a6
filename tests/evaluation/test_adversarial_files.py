"""Files of attacked images: a written one gives the same accuracy, others are refused in one line."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sora.data import Dataset, load
from sora.errors import UserError
from sora.evaluation import Evaluation, evaluate
from sora.evaluation.adversarial_files import check_adversarial, save_adversarial
from sora.evaluation.validity import Invalid
from sora.threat import Linf
from tests.data.helpers import damaged_bytes

N = 6


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 10))


@pytest.fixture(scope="module")
def evaluation(digits: Dataset, model: nn.Module) -> Evaluation:
    images = digits.test.subset(torch.arange(N))
    return evaluate(model, images, Linf(0.1), "clean,fgsm", keep_inputs=True)


@pytest.fixture
def file(evaluation: Evaluation, tmp_path: Path) -> Path:
    save_adversarial(tmp_path / "adv.npz", evaluation, torch.arange(N), {})
    return tmp_path / "adv.npz"


def changed(path: Path, **arrays: Any) -> Path:
    """The file with other arrays; None removes one, a dictionary changes some of the facts in `about`."""
    with np.load(path) as stored:
        if isinstance(arrays.get("about"), dict):
            arrays["about"] = np.array(json.dumps(json.loads(str(stored["about"])) | arrays["about"]))
        kept = {**stored, **arrays}
    np.savez(path, **{name: array for name, array in kept.items() if array is not None})
    return path


def test_a_file_gives_the_accuracy_it_was_written_with(file, digits, model, evaluation) -> None:
    """Its names and its box may be anything: names are marked, and the box of the data counts."""
    own = {"norm": "linf", "given": "0.1", "box": [-5, 5]}
    checked = check_adversarial(changed(file, about={"threat": own}), model, digits)
    assert checked.accuracy == {f"file:{name}": share for name, share in evaluation.accuracy.items()}
    assert checked.threat.box == (0, 1)
    assert "what the file says" in checked.warnings[0]
    darker = np.load(file)["adversarial_clean"] - np.float32(0.05)
    with pytest.raises(Invalid, match="left the box"):
        check_adversarial(changed(file, adversarial_clean=darker), model, digits)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"about": None}, "has no about"),
        ({"about": np.array("{")}, "about: Expecting"),
        ({"about": np.array("[" * 100_000)}, "nested too deeply"),
        ({"about": np.array("3")}, "about: Expected `object`"),
        ({"about": np.array("x" * 2_000_000)}, "exceeds the limit"),
        ({"about": {"attacks": {}}}, r"about: Expected `object` of length >= 1 - at `\$\.attacks`"),
        ({"about": {"threat": 3}}, "about: "),
        ({"about": {"threat": {}}}, "about: "),
        ({"about": {"threat": {"norm": 3, "given": "0.1", "box": [0, 1]}}}, "about: "),
        ({"about": {"threat": {"norm": "linf"}}}, "about: "),
        ({"positions": np.arange(N) - 1}, "test set does not have"),
        ({"positions": np.arange(N) + 10_000}, "test set does not have"),
        ({"positions": np.full(N, 2**64 - 1, np.uint64)}, "test set does not have"),
        ({"positions": np.zeros(N, int)}, "more than once"),
        ({"positions": np.arange(N) / 2}, "positions are float64"),
        ({"positions": np.zeros(0, int)}, "positions are int64"),
        ({"positions": np.zeros((N, 1), int)}, "positions are int64"),
        ({"labels": np.zeros(N - 1, int)}, "labels are int64"),
        ({"labels": np.full(N, 11)}, "belongs to other images"),
        ({"adversarial_fgsm": None}, "adversarial_fgsm is missing"),
        ({"adversarial_fgsm": np.zeros((N, 256), "f4")}, "adversarial_fgsm is float32"),
        ({"adversarial_fgsm": np.zeros((N, 1, 16, 16), "i4")}, "adversarial_fgsm is int32"),
        ({"adversarial_fgsm": np.zeros((N, 1, 16, 16), ">f4")}, "adversarial_fgsm is >f4"),
        ({"adversarial_fgsm": np.zeros((N, 1, 16, 16), np.longdouble)}, "adversarial_fgsm is float128"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(arrays, message, file, digits, model) -> None:
    with pytest.raises(UserError, match=message) as caught:
        check_adversarial(changed(file, **arrays), model, digits)
    assert "\n" not in str(caught.value)


def test_images_outside_the_ball_are_refused(file: Path, digits: Dataset, model: nn.Module) -> None:
    white = np.ones((N, 1, 16, 16), "f4")
    with pytest.raises(Invalid, match=r"left the ball: it moved an input by 1 in linf, eps is 0\.1"):
        check_adversarial(changed(file, adversarial_fgsm=white), model, digits)


def test_a_file_that_unpacks_to_far_too_much_is_refused(file, digits, model, monkeypatch) -> None:
    monkeypatch.setenv("SORA_MAX_UNPACKED", "100000")
    array = io.BytesIO()
    np.save(array, np.zeros(10**7, np.uint8))
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.npy", array.getvalue())
    with pytest.raises(UserError, match="unpacks to more than"):
        check_adversarial(file, model, digits)


def test_every_damaged_byte_is_noticed_or_harmless(tmp_path: Path, digits: Dataset, model: nn.Module) -> None:
    path = tmp_path / "adv.npz"
    facts = {"threat": {"norm": "linf", "given": "0.1", "box": [0, 1]}, "attacks": {}}
    labels = digits.test.labels[:30].numpy()
    np.savez_compressed(path, labels=labels, positions=np.arange(30), about=np.array(json.dumps(facts)))
    size = path.stat().st_size
    refused = 0
    for _ in damaged_bytes(path):
        try:  # any other exception would reach the user as it is
            assert check_adversarial(path, model, digits).n == 30
        except UserError:
            refused += 1
    assert refused > size / 4
