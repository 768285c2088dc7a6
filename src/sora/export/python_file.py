"""One Python file with the code of a model: the sources of its modules, without the rest of this package."""

import ast
import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from sora import models
from sora.errors import UserError
from sora.models._layers import per_channel
from sora.settings import is_custom

PACKAGE = models.__name__
_SIZES = ("num_classes", "in_channels", "image_size", "width")
_HEAD = '''"""A trained model, {name}: `load()` returns it. Needs torch and safetensors.

Pixels are in [0, 1]; normalisation is the first layer. Written by `sora export`.
"""

'''
_TAIL = '''

CLASSES = {classes!r}
SHAPE = {shape!r}
"""Channels, height and width of an image."""


def load(weights: str | Path = Path(__file__).with_name("model.safetensors")) -> nn.Module:
    """Return the model in evaluation mode, from images (N, *SHAPE) in [0, 1] to logits (N, classes)."""
    normalize = Normalize(mean={mean!r}, std={std!r})
    network = {cls}(**{options!r})
    model = nn.Sequential(OrderedDict(normalize=normalize, network=network))
    model.load_state_dict(load_file(weights))
    return model.eval()


if __name__ == "__main__":
    with torch.no_grad():
        print("probabilities for random pixels:", load()(torch.rand(1, *SHAPE)).softmax(1))
'''


def python_source(description: Mapping[str, Any], shape: Sequence[int]) -> str:
    """Return the file's text; `description` is what `model.json` holds, `shape` an image's (C, H, W)."""
    name = description["name"]
    build = None if is_custom(name) else models.info(name).build
    if build is None or not build.__module__.startswith(f"{PACKAGE}."):
        raise UserError(
            f"the model {name} is not one of this package, whose source could be written;"
            " allowed: --to torch, --to onnx"
        )
    imports = {"import torch", "from torch import nn", "from collections import OrderedDict"}
    imports |= {"from pathlib import Path", "from safetensors.torch import load_file"}
    bodies: dict[str, str] = {}
    for module in (f"{PACKAGE}._layers", build.__module__):
        _collect(module, bodies, imports)
    accepted = inspect.signature(build).parameters
    sizes = {key: description[key] for key in _SIZES if key in accepted and description[key] is not None}
    channels = description["in_channels"]
    tail = _TAIL.format(
        classes=[str(each) for each in description["classes"]],
        shape=tuple(shape),
        mean=per_channel("mean", description["mean"], 0.0, channels),
        std=per_channel("std", description["std"], 1.0, channels),
        cls=build.__name__,
        options=sizes | description["options"],
    )
    head = _HEAD.format(name=name) + "\n".join(sorted(imports, key=lambda line: (line.split()[0], line)))
    return "\n\n\n".join([head, *bodies.values()]) + tail


def _collect(name: str, bodies: dict[str, str], imports: set[str]) -> None:
    """Add the source of a module of this package, after those of the modules that it imports.

    Its docstring, its imports and its entries in the registry are left out; other imports are collected.
    """
    if name in bodies or name == PACKAGE:
        return
    source = inspect.getsource(importlib.import_module(name))
    lines, dropped = source.splitlines(), set[int]()

    def drop(node: ast.AST) -> None:
        dropped.update(range(node.lineno - 1, (node.end_lineno or node.lineno)))  # type: ignore[attr-defined]

    for place, node in enumerate(ast.parse(source).body):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "sora":
            _collect(str(node.module), bodies, imports)
            drop(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.add(ast.unparse(node))
            drop(node)
        elif place == 0 and isinstance(node, ast.Expr):
            drop(node)
        elif isinstance(node, ast.ClassDef):
            for decorator in node.decorator_list:
                if ast.unparse(decorator).startswith("register("):
                    drop(decorator)
    bodies[name] = "\n".join(line for place, line in enumerate(lines) if place not in dropped).strip()
