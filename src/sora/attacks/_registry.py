"""Every attack by the name that tables, files and flags use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from sora._registry import Registry
from sora.attacks._base import Attack
from sora.errors import UserError, short, unknown


@dataclass(frozen=True)
class Info:
    """A registry entry.

    Attributes:
        name: The name of the attack, or of the family that a pattern describes.
        summary: What it does, in one line.
        cls: The class.
        pattern: Regular expression for a family of names, e.g. `pgd10` and `pgd50x10`. Its named groups are
            whole numbers, passed to the class as keyword arguments.
        examples: Names of such a family to show in lists.
        usage: How a name of the family is written, e.g. `pgdK`.
    """

    name: str
    summary: str
    cls: type[Attack]
    pattern: str = ""
    examples: tuple[str, ...] = ()
    usage: str = ""

    def build(self, name: str) -> Attack | None:
        """The attack of that name, if this entry describes it."""
        match = re.fullmatch(self.pattern or re.escape(self.name), name)
        if match is None:
            return None
        numbers = {key: int(value) for key, value in match.groupdict().items() if value is not None}
        return self.cls(name, **numbers)


ATTACKS: Registry[Info] = Registry("attack", "sora.attacks", order=("clean", "fgsm", "pgd", "autoattack"))
A = TypeVar("A", bound=type[Attack])


def register(
    name: str, summary: str, *, pattern: str = "", examples: tuple[str, ...] = (), usage: str = ""
) -> Callable[[A], A]:
    """Class decorator that registers an attack; the arguments are the fields of `Info`."""

    def add(cls: A) -> A:
        ATTACKS.add(Info(name, summary, cls, pattern, examples, usage))
        return cls

    return add


def names() -> list[str]:
    """All names; of a family like `pgdK`, some examples."""
    return [shown for name in ATTACKS.names() for shown in _shown(name)]


def info(name: str) -> Info:
    """The registry entry of an attack, also of one that an installed package offers as an entry point."""
    found = _matching(name)
    if found is None:
        ATTACKS.names()  # loads those of other packages, whose patterns are not known before
        found = _matching(name)
    if found is None:
        raise _unknown(name)
    return found


def _matching(name: str) -> Info | None:
    return next((entry for entry in ATTACKS if name == entry.name or entry.build(name)), None)


def create(name: str) -> Attack:
    """The attack of that name: one of `names()`, `pgdK` with K steps, or `pgdKxR` with R restarts as well."""
    if not isinstance(name, str):
        raise UserError(f"attack is {short(name)}; expected a name: {', '.join(names())}")
    name = name.strip().lower()
    attack = info(name).build(name)
    if attack is None:  # the name of a family
        raise _unknown(name)
    return attack


def create_all(attacks: str | Iterable[str | Attack]) -> list[Attack]:
    """Several attacks, from a list or from text with commas; each once, in the order given."""
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


def _unknown(name: str) -> UserError:
    return unknown("attack", name, [*names(), *(entry.usage for entry in ATTACKS if entry.usage)])


def _shown(name: str) -> tuple[str, ...]:
    loaded = [entry for entry in ATTACKS if entry.name == name]
    return loaded[0].examples or (name,) if loaded else (name,)
