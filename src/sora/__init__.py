"""Fast adversarial training with an alarm for catastrophic overfitting.

Names are imported when first used (PEP 562), so that `sora --help` does not wait for torch.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

if TYPE_CHECKING:
    from sora import attacks, curvature, data, methods, models
    from sora.evaluation import evaluate
    from sora.experiments.compare import compare
    from sora.runs import load
    from sora.threat import L2, Linf
    from sora.training import Guard, fit

_MODULES = {
    "Linf": "threat",
    "L2": "threat",
    "compare": "experiments.compare",
    "evaluate": "evaluation",
    "fit": "training",
    "load": "runs",
    "Guard": "training.guard",
}

__all__ = [
    "L2",
    "Guard",
    "Linf",
    "attacks",
    "compare",
    "curvature",
    "data",
    "evaluate",
    "fit",
    "load",
    "methods",
    "models",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"sora.{_MODULES[name]}"), name)
    if not name.startswith("_") and importlib.util.find_spec(f"sora.{name}"):
        return importlib.import_module(f"sora.{name}")
    raise AttributeError(f"module 'sora' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
