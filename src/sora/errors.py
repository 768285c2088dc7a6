"""The two ways a user meets a failure: their own mistake, or ours and the machine's.

Both are one line. The command line turns `UserError` into exit code 2 and `RunError` into 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the caller asked for cannot be done; the message says what is allowed."""


class RunError(RuntimeError):
    """Something failed while working: a full disk, a non-finite loss, a broken file."""


def unknown(kind: str, name: str, allowed: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    return UserError(f"unknown {kind} {name!r}; {_allowed(name, sorted(allowed))}")


def not_allowed(what: str, value: object, allowed: Iterable[object]) -> UserError:
    """The error for a value that is none of the fixed choices, with the nearest one."""
    return UserError(f"{what} is {value!r}; {_allowed(str(value), [str(choice) for choice in allowed])}")


def _allowed(given: str, choices: list[str]) -> str:
    near = difflib.get_close_matches(given, choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}allowed: {', '.join(choices)}"
