"""Training methods: one a file, found by name. `create("sora", threat)` is the way in."""

from __future__ import annotations

import importlib
import pkgutil

from sora.methods._base import Hyper, Inputs, Method, StepOutput
from sora.methods._compile import compiled_step
from sora.methods._cost import Cost, cost_table, measure
from sora.methods._pages import page
from sora.methods._registry import Info, create, info, names, preset, register

# The paper's order, which tables keep; a file not named here comes after, so adding one is enough.
_ORDER = [
    "benign",
    "fgsm",
    "free",
    "fgsm_rs",
    "gradalign",
    "nuat",
    "zerograd",
    "multigrad",
    "n_fgsm",
    "atas",
    "aaer",
    "elle",
    "sora",
    "pgd",
    "trades",
    "fgsm_ckpt",
]
_found = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
for _name in sorted(_found, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)):
    importlib.import_module(f"{__name__}.{_name}")

__all__ = [
    "Cost",
    "Hyper",
    "Info",
    "Inputs",
    "Method",
    "StepOutput",
    "compiled_step",
    "cost_table",
    "create",
    "info",
    "measure",
    "names",
    "page",
    "preset",
    "register",
]
