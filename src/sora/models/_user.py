"""A user's own network, named `package.module:function`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from sora.errors import UserError


def find_builder(name: str) -> Callable[..., nn.Module]:
    """The function (or class) that `package.module:function` names; importing it runs the user's code."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise UserError(f"model {name!r} is not of the form package.module:function")
    here = os.getcwd()
    if here not in sys.path:  # `python -m` adds it; an installed command does not
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's module may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"model {name!r}: cannot import {module_name!r}: {reason}") from error
    builder: Any = getattr(module, function_name, None)
    if not callable(builder):
        raise UserError(f"model {name!r}: {module_name!r} has no function {function_name!r}")
    return builder  # type: ignore[no-any-return]
