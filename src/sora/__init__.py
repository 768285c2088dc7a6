"""Fast adversarial training that sees catastrophic overfitting coming.

Names are imported when first used (PEP 562), so that `sora --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sora import attacks, curvature, data, methods, models
    from sora.evaluation import evaluate
    from sora.threat import L2, Linf
    from sora.training import Guard, fit, load

_HOMES = {
    "Linf": "threat",
    "L2": "threat",
    "evaluate": "evaluation",
    "fit": "training",
    "load": "training",
    "Guard": "training",
}
_ROOMS = (
    "attacks",
    "curvature",
    "data",
    "evaluation",
    "methods",
    "metrics",
    "models",
    "probes",
    "runs",
    "threat",
    "training",
)

__all__ = [
    "L2",
    "Guard",
    "Linf",
    "attacks",
    "curvature",
    "data",
    "evaluate",
    "fit",
    "load",
    "methods",
    "models",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"sora.{_HOMES[name]}"), name)
    if name in _ROOMS:
        return importlib.import_module(f"sora.{name}")
    raise AttributeError(f"module 'sora' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
