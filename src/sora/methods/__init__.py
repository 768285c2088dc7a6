"""Training methods, one per file, found by name. `create("sora", threat)` makes one.

A method of your own needs nothing but the names below; `fgsm_rs.py` is a short complete example.
"""

from sora._passes import ascend, cross_entropy, gradient_of, input_gradient
from sora._typed import option
from sora.methods._base import METHODS, Method, check_smoothing, create, info, names, page, preset, register
from sora.methods._compile import compiled_step
from sora.methods._cost import Bench, Cost, cost_table, measure
from sora.methods._records import (
    GROUPS,
    Crafted,
    Hyper,
    Inputs,
    Learned,
    MethodInfo,
    PenaltyHyper,
    Smoothing,
    StepOutput,
    soft_targets,
)
from sora.methods._state import OwnOptimizer

__all__ = [
    "GROUPS",
    "Bench",
    "Cost",
    "Crafted",
    "Hyper",
    "Inputs",
    "Learned",
    "Method",
    "MethodInfo",
    "OwnOptimizer",
    "PenaltyHyper",
    "Smoothing",
    "StepOutput",
    "ascend",
    "check_smoothing",
    "compiled_step",
    "cost_table",
    "create",
    "cross_entropy",
    "gradient_of",
    "info",
    "input_gradient",
    "measure",
    "names",
    "option",
    "page",
    "preset",
    "register",
    "soft_targets",
]

METHODS.discover()  # last, because the method files import the names above
