"""`sora.fit`: the user's own module and data, and a run folder that records exactly that."""

import signal
import threading
from contextlib import nullcontext
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
from tests.training.helpers import At, SignalAfter

FAST: dict[str, Any] = {"epochs": 1, "batch_size": 16, "holdout": 6, "attacks": ("clean", "fgsm", "pgd10")}


def tensors(count: int = 60, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return images, torch.arange(count) % classes


def linear_model(classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, classes))


@pytest.mark.parametrize(
    "options", [{}, {"ema": 0.9}, {"ema": 0.9, "ema_buffers": "estimate"}, {"method": "fgsm-law"}]
)
def test_the_weights_that_the_evaluation_is_of_are_left_in_the_module(options, tmp_path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(192, 3))
    images, labels = tensors()
    pair = ((images, labels), (images[:30], labels[:30]))
    result = sora.fit(model, pair, out=tmp_path / "a", quiet=True, **FAST, **options)
    again = sora.evaluate(model, (images[:30] / 255, labels[:30]), sora.Linf("8/255"))
    assert isinstance(result, Evaluation)
    assert result.accuracy == again.accuracy == result.summary["accuracy"]
    assert result.verdict == again.verdict
    for name, tensor in load_file(RunFolder(tmp_path / "a").weights).items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_the_process_has_its_own_settings_again_afterwards() -> None:
    images, labels = tensors()
    before = torch.get_num_threads(), torch.backends.cudnn.deterministic
    torch.set_num_threads(2)
    torch.backends.cudnn.deterministic = False
    try:
        sora.fit(linear_model(), ((images, labels), (images, labels)), quiet=True, threads=1, **FAST)
        assert (torch.get_num_threads(), torch.backends.cudnn.deterministic) == (2, False)
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cudnn.deterministic = before[1]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    """A folder in which a module was trained, and that module."""
    folder, model = tmp_path_factory.mktemp("fitted") / "a", linear_model()
    result = sora.fit(model, (tensors(), tensors(30)), out=folder, quiet=True, **FAST)
    assert result.folder is not None
    assert result.folder.path == folder
    return folder, model


def test_the_folder_records_the_module_and_the_tensors(fitted: tuple[Path, nn.Module]) -> None:
    (path, model), (images, labels) = fitted, tensors()
    summary, description = RunFolder(path).read_summary(), RunFolder(path).read_model()
    assert (summary["dataset"], summary["model"]) == ("given:tensors", "given:Sequential")
    assert (description["name"], description["num_classes"]) == ("given:Sequential", 3)
    assert description["classes"] == ["0", "1", "2"]
    assert (description["mean"], description["width"], description["options"]) == (None, None, {})
    assert summary["data"]["fingerprint"] == description["data"]["fingerprint"]
    other = sora.fit(linear_model(), ((images.flip(0), labels), tensors(30)), quiet=True, **FAST)
    assert other.summary["data"]["fingerprint"] != summary["data"]["fingerprint"]
    assert other.folder is None
    x = images[:5] / 255
    assert torch.equal(sora.load(path, model=linear_model())(x), model.eval()(x))


def test_a_folder_of_a_given_module_is_explained_not_broken(fitted: tuple[Path, nn.Module], capsys) -> None:
    path, _ = fitted
    with pytest.raises(UserError, match=r"module given in Python \(Sequential\).*model=your_module"):
        sora.load(path)
    assert main(["evaluate", str(path)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert f"sora evaluate --weights {path / 'model.safetensors'} --model package.module" in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "already holds a run; choose another folder or pass resume=True"),
        ({"epochs": 0}, "epochs is 0"),  # wrong arguments are reported first
    ],
)
def test_a_used_folder_is_refused_unless_resumed(fitted, changes, message) -> None:
    before = RunFolder(fitted[0]).weights.read_bytes()
    with pytest.raises(UserError, match=message):
        sora.fit(linear_model(), (tensors(), tensors(30)), out=fitted[0], quiet=True, **FAST | changes)
    assert RunFolder(fitted[0]).weights.read_bytes() == before


@pytest.mark.parametrize(
    ("given", "eps", "name", "radius"),
    [
        ("digits", "0.1", "digits", 0.1),
        ("digits", None, "digits", 0.15),  # the recipe's
        (data.load("digits"), None, "given:digits", 8 / 255),
    ],
    ids=["named", "recipe", "object"],
)
def test_a_data_set_brings_its_name_and_its_recipe_but_no_linear_model(given, eps, name, radius) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))
    summary = sora.fit(model, given, eps=eps, quiet=True, **FAST | {"limit_train": 64}).summary
    assert summary["dataset"] == name
    assert summary["threat"]["eps"] == pytest.approx(radius)


def test_arrays_and_float_images_train_the_same_linear_model() -> None:
    images, labels = tensors()
    found = []
    for x, y in (
        (images, labels),
        (images / 255, labels),
        (images.numpy(), labels.numpy()),
        (images.flip(0).numpy()[::-1], labels.flip(0).numpy()[::-1]),  # negative strides
        ((images / 255).numpy(), labels.numpy()),
    ):
        model = linear_model()
        sora.fit(model, ((x, y), (x[:30], y[:30])), quiet=True, **FAST)
        found.append(nn.utils.parameters_to_vector(model.parameters()))
    assert all(torch.equal(found[0], other) for other in found[1:])


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


IMAGES, LABELS = tensors()
BUILT_IN = "is for built-in models; a module is trained as it is given"


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((IMAGES / 255 - 0.5) / 0.25, {}, r"inputs lie in \[-2, 2\], outside the box .*or box=None"),
        (
            IMAGES.long(),
            {},
            r"inputs are torch.int64 \(60, 3, 8, 8\); expected floats \(N, ...\), or uint8",
        ),
        (torch.zeros(60, 3, 10, 10, dtype=torch.uint8), {}, "different sizes: train 10x10x3, test 8x8x3"),
        (IMAGES, {"norm": "l2"}, "meant for linf; pass eps for l2"),
        (IMAGES, {"width": 16}, BUILT_IN),
        (IMAGES, {"set": {"model.stages": 2}}, BUILT_IN),
        (IMAGES, {"mean": (0.5, 0.5, 0.5)}, BUILT_IN),
    ],
    ids=["normalised", "integers", "size", "norm", "width", "set", "mean"],
)
def test_wrong_data_and_options_are_refused(given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        sora.fit(linear_model(), ((given, LABELS), tensors(30)), quiet=True, **FAST, **options)


@pytest.mark.parametrize("kept", [True, False])
def test_an_interruption_says_whether_something_is_kept(tmp_path: Path, kept: bool) -> None:
    stop, out = SignalAfter(2, signal.SIGTERM), tmp_path / "a" if kept else None
    words = "its checkpoint is kept" if kept else "nothing is kept; with out= there would be a checkpoint"
    with pytest.raises(Interrupted, match=words):
        sora.fit(linear_model(), (tensors(), tensors(30)), quiet=True, hooks=[stop], out=out, **FAST)


def normalised(*, activation: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm2d(3), activation or nn.ReLU(), nn.Flatten(), nn.Linear(192, 3))


def with_fixed_statistics() -> nn.Module:
    model = normalised()
    model[0].eval()
    return model


def with_fixed_weights() -> nn.Module:
    model = normalised()
    model[0].requires_grad_(False)
    return model


class Counting(nn.Sequential):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


@pytest.mark.parametrize(
    ("first", "second", "continues"),
    [
        (normalised, normalised, True),
        (normalised, lambda: normalised(activation=nn.Tanh()), False),
        (normalised, lambda: normalised(activation=nn.LeakyReLU(0.1)), False),
        (normalised, with_fixed_statistics, False),
        (normalised, with_fixed_weights, False),
        (lambda: Counting(*normalised()), lambda: Counting(*normalised()), True),
    ],
    ids=["same", "activation", "option", "modes", "frozen", "changed by training"],
)
def test_a_run_continues_with_its_own_model_only(first, second, continues: bool, tmp_path: Path) -> None:
    known = {"out": tmp_path / "a", "quiet": True, "resume": True, **FAST}
    with pytest.raises(Interrupted):
        sora.fit(first(), (tensors(), tensors(30)), hooks=[SignalAfter(2, signal.SIGTERM)], **known)
    with nullcontext() if continues else pytest.raises(UserError, match="trained another model"):
        sora.fit(second(), (tensors(), tensors(30)), **known)


@pytest.mark.parametrize("mode", ["part", "all"])
def test_modes_are_as_they_were_and_parts_in_evaluation_mode_stay_in_it(mode: str) -> None:
    model = with_fixed_statistics() if mode == "part" else normalised().eval()
    modes, statistics = [part.training for part in model.modules()], model[0].running_mean.clone()
    sora.fit(model, (tensors(), tensors(30)), quiet=True, **FAST)
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(model[0].running_mean, statistics) == (mode == "part")


def test_statistics_in_evaluation_mode_are_not_estimated() -> None:
    averages = {"ema": 0.9, "ema_buffers": "estimate"}
    with pytest.raises(UserError, match="statistics of a BatchNorm in evaluation mode"):
        sora.fit(with_fixed_statistics(), (tensors(), tensors(30)), quiet=True, **FAST, **averages)


def test_a_second_thread_is_refused_and_does_not_disturb_the_first() -> None:
    alone, beside, errors = normalised(), normalised(), list[str]()

    def fit_beside(run: Any, batch: Any) -> None:
        def other() -> None:
            try:
                sora.fit(normalised(), (tensors(), tensors(30)), quiet=True, **FAST)
            except UserError as error:
                errors.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    for model, hooks in ((alone, []), (beside, [At(1, fit_beside)])):
        sora.fit(model, (tensors(), tensors(30)), method="fgsm-rs", hooks=hooks, quiet=True, **FAST)
    assert errors == ["another thread is training; train after it, or in a process of its own"]
    assert torch.equal(alone[3].weight, beside[3].weight)
