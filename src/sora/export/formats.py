"""The formats of an export, each with what it needs, how it is written and how it is loaded again."""

import contextlib
import importlib.util
import io
import logging
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sora._files import write_json, write_text
from sora.errors import UserError
from sora.evaluation.subject import Subject
from sora.export.hub import card, config
from sora.export.python_file import python_source

WEIGHTS, CODE = "model.safetensors", "model.py"


@dataclass(frozen=True)
class Source:
    """What is exported."""

    subject: Subject
    description: Mapping[str, Any]  # what `model.json` holds
    model: nn.Module  # the model in evaluation mode on the CPU, its tensors in torch's usual layout
    example: Tensor  # two images of the data set


@dataclass(frozen=True)
class Format:
    """One way to store a model."""

    write: Callable[[Path, Source], str]
    """Write to a folder and return the name of the file to load; "" stands for the folder."""
    open: Callable[[Path], Callable[[Tensor], Tensor]]  # load what was written to a folder
    packages: tuple[str, ...] = ()  # packages of the extra `export` that it needs

    def check(self) -> None:
        """Raise if a package is missing."""
        missing = [name for name in self.packages if find_spec(name) is None]
        if missing:
            raise UserError(f"this format needs {', '.join(missing)}: pip install 'sora-at[export]'")


def _shapes() -> tuple[dict[int, Any]]:
    """Let the number of images vary."""
    return ({0: torch.export.Dim("batch", min=1)},)


def _write_torch(folder: Path, source: Source) -> str:
    # `strict=True`, the default of torch 2.6, gives names that its reader refuses.
    program = torch.export.export(source.model, (source.example,), dynamic_shapes=_shapes(), strict=False)
    torch.export.save(program, folder / "model.pt2")
    return "model.pt2"


def _write_onnx(folder: Path, source: Source) -> str:
    # The exporter reports its progress, deprecated calls of its own and the absence of torchvision.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how: Any = {"dynamic_shapes": _shapes(), "dynamo": True, "external_data": False, "verbose": False}
        how |= {"input_names": ["pixels"], "output_names": ["logits"]}
        torch.onnx.export(source.model, (source.example,), str(folder / "model.onnx"), **how)
    return "model.onnx"


def _open_onnx(folder: Path) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"pixels": x.numpy()})[0])


def _write_python(folder: Path, source: Source) -> str:
    write_text(folder / CODE, python_source(source.description, tuple(source.example.shape[1:])))
    shutil.copyfile(source.subject.folder.weights, folder / WEIGHTS)
    return CODE


def _open_python(folder: Path) -> Callable[[Tensor], Tensor]:
    spec = importlib.util.spec_from_file_location("exported_model", folder / CODE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()  # type: ignore[no-any-return]


def _write_hub(folder: Path, source: Source) -> str:
    """Write the Python file, its configuration and a card."""
    _write_python(folder, source)
    write_json(folder / "config.json", config(source.description))
    write_text(folder / "README.md", card(source.subject))
    return ""


FORMATS = {
    "torch": Format(_write_torch, lambda folder: torch.export.load(folder / "model.pt2").module()),
    "onnx": Format(_write_onnx, _open_onnx, ("onnx", "onnxscript", "onnxruntime")),
    "hub": Format(_write_hub, _open_python),
    "python": Format(_write_python, _open_python),
}
