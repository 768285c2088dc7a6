"""The attacks that judge a model: FGSM, PGD with restarts, AutoAttack."""

from sora.attacks._base import Attack
from sora.attacks._gradient import fgsm, pgd
from sora.attacks._named import NAMES, parse, parse_all
from sora.attacks.auto import autoattack

__all__ = ["NAMES", "Attack", "autoattack", "fgsm", "parse", "parse_all", "pgd"]
