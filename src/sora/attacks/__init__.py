"""The attacks that evaluate a model, one per file, found by name: FGSM, PGD with restarts, AutoAttack."""

import re
from collections.abc import Iterable

from sora.attacks._base import ATTACKS, Attack, AttackInfo, info, names, register
from sora.errors import UserError, short

ATTACKS.discover()  # first, so that the order of names is the registry's and not that of the imports below

from sora.attacks.autoattack import autoattack  # noqa: E402
from sora.attacks.fgsm import fgsm  # noqa: E402
from sora.attacks.pgd import pgd  # noqa: E402

__all__ = [
    "Attack",
    "AttackInfo",
    "autoattack",
    "create",
    "create_all",
    "fgsm",
    "info",
    "names",
    "pgd",
    "register",
]


def create(name: str) -> Attack:
    """Return an attack: one of `names()`, `pgdK` with K steps, or `pgdKxR` with R restarts as well.

    `attack(model, x, y, threat, seed=0)` draws its random start from `seed` alone and ignores
    `torch.manual_seed`: other starts need another seed.
    """
    name = name.strip().lower() if isinstance(name, str) else name
    attack = info(name).build(name)
    if attack is None:  # the name of a family
        raise ATTACKS.unknown(name)
    return attack


def create_all(attacks: str | Iterable[str | Attack]) -> list[Attack]:
    """Return several attacks, from a list or from text with commas; each once, in the order given."""
    items = [item for item in attacks.split(",") if item.strip()] if isinstance(attacks, str) else attacks
    if not isinstance(items, Iterable):
        raise UserError(f"attacks are {short(attacks)}; expected names such as clean,fgsm,pgd10")
    created = [item if isinstance(item, Attack) else create(item) for item in items]
    if not created:
        raise UserError(f"no attack was given; allowed: {', '.join(names())}")
    chosen: dict[str, Attack] = {}
    for attack in created:
        if not re.fullmatch(r"[\w.@+-]+", attack.name):  # it names files
            raise UserError(f"attack name {short(attack.name)}; allowed: letters, digits and . _ - + @")
        if chosen.setdefault(attack.name, attack) != attack:
            raise UserError(f"two different attacks are called {attack.name}; give each its own name")
    return [*chosen.values()]
