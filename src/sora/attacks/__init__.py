"""The attacks that judge a model: FGSM, PGD with restarts, AutoAttack."""

from sora.attacks._gradient import fgsm, pgd
from sora.attacks._named import NAMES, Attack, parse, parse_all

__all__ = ["NAMES", "Attack", "fgsm", "parse", "parse_all", "pgd"]
