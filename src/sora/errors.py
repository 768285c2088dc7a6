"""The two kinds of failure a user sees: a request that cannot be carried out, and a failure while working.

The message of both is one line. The command line turns `UserError` into exit code 2 and `RunError` into 1.
"""

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > 1000:  # Python refuses to print very large numbers, and a file may hold one
            return f"<integer of {x.bit_length()} bits>"
        return super().repr_int(x, level)


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 120
_SHORT.maxlevel = 3


class UserError(ValueError):
    """Something the caller asked for cannot be done; the message says what is allowed."""


class RunError(RuntimeError):
    """Something failed while working: a full disk, a non-finite loss, a broken file."""


def short(value: Any) -> str:
    """Return a value for a message, in one line and cut where it is long: it may come from a hostile file."""
    return " ".join(_SHORT.repr(value).split())


def unknown(kind: str, name: str, allowed: Iterable[str], *, see: str = "") -> UserError:
    """Return the error for a name that does not exist, with the nearest one that does.

    The others are listed, unless `see` says where they are, which is enough beside a near one.
    """
    choices = sorted(allowed)
    near = difflib.get_close_matches(str(name)[:200], choices, n=1, cutoff=0.5) if see else []
    rest = f"did you mean {near[0]!r}? {see}" if near else see or _allowed(str(name)[:200], choices)
    return UserError(f"unknown {kind} {short(name)}; {rest}")


def not_allowed(what: str, value: object, allowed: Iterable[object]) -> UserError:
    """Return the error for a value that is none of the fixed choices, with the nearest one."""
    return UserError(
        f"{what} is {short(value)}; {_allowed(str(value)[:200], [str(choice) for choice in allowed])}"
    )


def _allowed(given: str, choices: list[str]) -> str:
    near = difflib.get_close_matches(given, choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}allowed: {', '.join(choices)}"
