"""Models named `package.module:function`."""

import itertools
import sys
from pathlib import Path

import pytest
import torch

from sora.errors import UserError
from sora.models import create

NUMBER = itertools.count()  # a fresh module name per test: Python imports a name once

BUILDERS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, **given):
        super().__init__()
        self.given = given

def every(num_classes, in_channels, image_size, width=8, depth=2):
    return Net(**locals())

def few(num_classes, *, image_size):
    return Net(**locals())

def any_(**given):
    return Net(**given)

def needs_more(num_classes, secret):
    return Net()

def text(num_classes):
    return "not a model"

value = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, from which Python does not import by itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in sys.path if p not in ("", str(tmp_path))])
    return tmp_path


@pytest.fixture
def module(folder: Path) -> str:
    """The name of a module in the current directory."""
    name = f"own_nets_{next(NUMBER)}"
    (folder / f"{name}.py").write_text(BUILDERS)
    return name


def given(name: str, *args: int, **kwargs: object) -> dict[str, object]:
    return create(name, *args, **kwargs).given  # type: ignore[arg-type, return-value]


def test_a_builder_or_class_gets_what_its_signature_accepts_and_is_not_wrapped(module: str) -> None:
    sizes = {"num_classes": 4, "in_channels": 1, "image_size": 16}
    assert given(f"{module}:every", 4, 1, 16) == {**sizes, "width": 8, "depth": 2}
    assert given(f"{module}:every", 4, 1, 16, width=3, depth=1) == {**sizes, "width": 3, "depth": 1}
    assert given(f"{module}:few", 4, 1, 16) == {"num_classes": 4, "image_size": 16}
    assert given(f"{module}:any_", 4, 1, 16, a=1) == {**sizes, "a": 1}
    assert given(f"{module}:Net", 4)["num_classes"] == 4
    assert type(create(f"{module}:few", 4, mean=[0.5], std=[0.5])).__name__ == "Net"


def test_a_module_inside_a_package(folder: Path) -> None:
    package = folder / f"own_package_{next(NUMBER)}"
    package.mkdir()
    (package / "nets.py").write_text("from torch import nn\ndef flat():\n    return nn.Flatten()\n")
    model = create(f"{package.name}.nets:flat", 2)
    assert model(torch.rand(2, 3, 4, 4)).shape == (2, 48)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("missing", {}, "has no function 'missing'$"),
        ("value", {}, "has no function 'value'$"),
        ("text", {}, "must return a torch.nn.Module, not str$"),
        ("needs_more", {}, "needs more than .*: missing a required argument: 'secret'$"),
        ("every", {"width": 2, "dept": 1}, "'dept'; did you mean 'depth'. allowed: depth, width$"),
        ("few", {"width": 2}, r"'width'; allowed: \(none\)$"),
        ("", {}, "is not of the form package.module:function$"),
    ],
)
def test_a_mistake_is_one_line(module: str, function: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        create(f"{module}:{function}", 4, **options)  # type: ignore[arg-type]
    assert module in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "cannot import '.*': ModuleNotFoundError: No module named"),
        ("def broken(:", "cannot import '.*': SyntaxError: "),
        ("raise RuntimeError('first\\nsecond')", "cannot import '.*': RuntimeError: first second$"),
    ],
)
def test_a_module_that_cannot_be_imported(folder: Path, source: str | None, message: str) -> None:
    name = f"own_broken_{next(NUMBER)}"
    if source is not None:
        (folder / f"{name}.py").write_text(source)
    with pytest.raises(UserError, match=message) as caught:
        create(f"{name}:net", 4)
    assert "\n" not in str(caught.value)
