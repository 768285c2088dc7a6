"""Training: the loop, a user's hooks around it, checkpoints, the guard.

Names are imported when first used (PEP 562), so that `sora.Guard` in your own loop needs torch alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sora.training.fitting import fit
    from sora.training.guard import Guard
    from sora.training.hooks import Hook
    from sora.training.loop import train
    from sora.training.process import Interrupted
    from sora.training.result import TrainResult

_MODULES = {
    "Guard": "guard",
    "Hook": "hooks",
    "Interrupted": "process",
    "TrainResult": "result",
    "fit": "fitting",
    "train": "loop",
}

__all__ = ["Guard", "Hook", "Interrupted", "TrainResult", "fit", "train"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sora.training' has no attribute {name!r}")
    return getattr(importlib.import_module(f"sora.training.{_MODULES[name]}"), name)
