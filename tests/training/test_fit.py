"""`sora.fit`: the user's own module and data, and a run folder that records exactly that."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import sora
from sora import data
from sora.cli import main
from sora.errors import UserError
from sora.evaluation import Evaluation
from sora.runs import RunFolder
from sora.training import Interrupted
from tests.training.helpers import SignalAfter

FAST: dict[str, Any] = {"epochs": 1, "batch_size": 16, "holdout": 6, "attacks": ("clean", "fgsm", "pgd10")}


def tensors(count: int = 60, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return images, torch.arange(count) % classes


def network(classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, classes))


def test_it_returns_an_evaluation_like_evaluate_does() -> None:
    images, labels = tensors()
    model = network()
    result = sora.fit(model, ((images, labels), (images[:30], labels[:30])), quiet=True, **FAST)
    assert isinstance(result, Evaluation)
    again = sora.evaluate(model, (images[:30] / 255, labels[:30]), sora.Linf("8/255"))
    assert result.accuracy == again.accuracy
    assert result.verdict == again.verdict
    assert result.summary["accuracy"] == result.accuracy
    assert result.folder is None


@pytest.mark.parametrize(
    "options", [{"ema": 0.9}, {"ema": 0.9, "ema_buffers": "estimate"}, {"method": "fgsm-law"}]
)
def test_averaged_weights_are_left_in_the_module(options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(192, 3))
    images, labels = tensors()
    pair = ((images, labels), (images[:30], labels[:30]))
    result = sora.fit(model, pair, out=tmp_path / "a", quiet=True, **FAST, **options)
    again = sora.evaluate(model, (images[:30] / 255, labels[:30]), sora.Linf("8/255"))
    assert result.accuracy == again.accuracy
    for name, tensor in load_file(RunFolder(tmp_path / "a").weights).items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_the_process_has_its_own_settings_again_afterwards() -> None:
    images, labels = tensors()
    before = torch.get_num_threads(), torch.backends.cudnn.deterministic
    torch.set_num_threads(2)
    torch.backends.cudnn.deterministic = False
    try:
        sora.fit(network(), ((images, labels), (images, labels)), quiet=True, threads=1, **FAST)
        assert (torch.get_num_threads(), torch.backends.cudnn.deterministic) == (2, False)
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cudnn.deterministic = before[1]


def test_the_folder_records_the_module_and_the_tensors(tmp_path: Path) -> None:
    (images, labels), model = tensors(), network()
    pair = ((images, labels), (images[:30], labels[:30]))
    result = sora.fit(model, pair, out=tmp_path / "a", quiet=True, **FAST)
    folder = RunFolder(tmp_path / "a")
    summary, description = folder.read_summary(), folder.read_model()
    assert (summary["dataset"], summary["model"]) == ("given:tensors", "given:Sequential")
    assert (description["name"], description["num_classes"]) == ("given:Sequential", 3)
    assert description["classes"] == ["0", "1", "2"]
    assert (description["mean"], description["width"], description["options"]) == (None, None, {})
    assert summary["data"]["fingerprint"] == description["data"]["fingerprint"]
    other = sora.fit(network(), ((images.flip(0), labels), pair[1]), out=tmp_path / "b", quiet=True, **FAST)
    assert other.summary["data"]["fingerprint"] != summary["data"]["fingerprint"]
    loaded = sora.load(tmp_path / "a", model=network())
    x = images[:5] / 255
    assert torch.equal(loaded(x), model.eval()(x))
    assert result.folder is not None
    assert result.folder.path == tmp_path / "a"


def test_a_folder_of_a_given_module_is_explained_not_broken(tmp_path: Path, capsys: Any) -> None:
    images, labels = tensors()
    sora.fit(network(), ((images, labels), (images, labels)), out=tmp_path / "a", quiet=True, **FAST)
    with pytest.raises(UserError, match=r"module given in Python \(Sequential\).*model=your_module"):
        sora.load(tmp_path / "a")
    assert main(["evaluate", str(tmp_path / "a")]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert f"sora evaluate --weights {tmp_path / 'a' / 'model.safetensors'} --model package.module" in message


def test_a_used_folder_is_refused_unless_resumed_and_after_wrong_arguments(tmp_path: Path) -> None:
    pair = (tensors(), tensors(30))
    sora.fit(network(), pair, out=tmp_path / "a", quiet=True, **FAST)
    before = RunFolder(tmp_path / "a").weights.read_bytes()
    with pytest.raises(UserError, match="already holds a run; choose another folder or pass resume=True"):
        sora.fit(network(), pair, out=tmp_path / "a", quiet=True, **FAST)
    with pytest.raises(UserError, match="epochs is 0"):
        sora.fit(network(), pair, out=tmp_path / "a", quiet=True, **FAST | {"epochs": 0})
    assert RunFolder(tmp_path / "a").weights.read_bytes() == before


@pytest.mark.parametrize(
    ("given", "eps", "name", "radius"),
    [
        ("digits", "0.1", "digits", 0.1),
        ("digits", None, "digits", 0.15),  # the recipe's
        (data.load("digits"), None, "given:digits", 8 / 255),
    ],
    ids=["named", "recipe", "object"],
)
def test_a_data_set_brings_its_name_and_its_recipe_but_no_network(
    given: Any, eps: str | None, name: str, radius: float
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
    summary = sora.fit(model, given, eps=eps, quiet=True, **FAST | {"limit_train": 64}).summary
    assert summary["dataset"] == name
    assert summary["threat"]["eps"] == pytest.approx(radius)


def test_arrays_and_float_images_train_the_same_network() -> None:
    images, labels = tensors()
    found = []
    for x, y in (
        (images, labels),
        (images / 255, labels),
        (images.numpy(), labels.numpy()),
        ((images / 255).numpy(), labels.numpy()),
    ):
        model = network()
        sora.fit(model, ((x, y), (x[:30], y[:30])), quiet=True, **FAST)
        found.append(nn.utils.parameters_to_vector(model.parameters()))
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_images_that_are_no_pixels_are_refused_with_what_came() -> None:
    images, labels = tensors()
    expected = r"expected uint8 \(N, C, H, W\), or the same divided by 255"
    normalised = (images / 255 - 0.5) / 0.25
    with pytest.raises(UserError, match=r"float32 \(60, 3, 8, 8\) in \[-2, 2\]; " + expected):
        sora.fit(network(), ((normalised, labels), (normalised, labels)), quiet=True, **FAST)
    between = images / 255 * 0.999
    with pytest.raises(UserError, match=expected):
        sora.fit(network(), ((between, labels), (between, labels)), quiet=True, **FAST)


def test_a_collapsed_model_is_warned_about_as_in_evaluate(tmp_path: Path, capsys: Any) -> None:
    class Constant(nn.Module):
        """Predicts class 2 for everything."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 0 * self.weight * x.flatten(1)[:, :3] + torch.tensor([-1.0, 0.0, 1.0])

    pair = (tensors(), tensors(30))
    result = sora.fit(Constant(), pair, out=tmp_path / "a", **FAST)
    message = "the model predicts class 2 for everything"
    assert f"warning: {message}" in capsys.readouterr().err
    assert any(message in text for text in result.summary["warnings"])
    assert RunFolder(tmp_path / "a").read_summary()["warnings"] == result.summary["warnings"]


def test_another_norm_needs_a_radius() -> None:
    with pytest.raises(UserError, match="meant for linf; pass --eps for l2"):
        sora.fit(network(), (tensors(), tensors(30)), norm="l2", quiet=True, **FAST)


@pytest.mark.parametrize("options", [{"width": 16}, {"set": {"model.stages": 2}}, {"mean": (0.5, 0.5, 0.5)}])
def test_options_of_built_in_networks_are_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="is for built-in models; a module is trained as it is given"):
        sora.fit(network(), (tensors(), tensors(30)), quiet=True, **FAST, **options)


def test_images_of_another_size_for_testing_are_an_error() -> None:
    larger = torch.zeros(30, 3, 10, 10, dtype=torch.uint8), torch.arange(30) % 3
    with pytest.raises(UserError, match="different sizes: train 8x8x3, test 10x10x3"):
        sora.fit(network(), (tensors(), larger), quiet=True, **FAST)


@pytest.mark.parametrize("kept", [True, False])
def test_an_interruption_says_whether_something_is_kept(tmp_path: Path, kept: bool) -> None:
    stop = SignalAfter(2, signal.SIGTERM)
    words = "its checkpoint is kept" if kept else "nothing is kept; with out= there would be a checkpoint"
    with pytest.raises(Interrupted, match=words):
        sora.fit(
            network(),
            (tensors(), tensors(30)),
            quiet=True,
            hooks=[stop],
            out=tmp_path / "a" if kept else None,
            **FAST,
        )
