"""The attacks that evaluate a model, one per file, found by name: FGSM, PGD with restarts, AutoAttack."""

from sora.attacks._base import Attack
from sora.attacks._registry import ATTACKS, Info, create, create_all, info, names, register

ATTACKS.discover()  # first, so that the order of names is the registry's and not that of the imports below

from sora.attacks.autoattack import autoattack  # noqa: E402
from sora.attacks.fgsm import fgsm  # noqa: E402
from sora.attacks.pgd import pgd  # noqa: E402

__all__ = [
    "Attack",
    "Info",
    "autoattack",
    "create",
    "create_all",
    "fgsm",
    "info",
    "names",
    "pgd",
    "register",
]
