"""Typed options: a frozen dataclass whose fields carry their help and allowed range, checked on creation.

Training settings and the methods' hyper-parameters share it, so a wrong value is reported by the same
one-line error wherever it comes from: a keyword argument, a flag, a YAML file.
"""

import dataclasses
import sys
import types
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from sora.errors import UserError, not_allowed, short, unknown

T = TypeVar("T", bound="Options")


def option(default: Any, help: str, *, low: Any = None, high: Any = None, above: Any = None) -> Any:
    """Return a dataclass field with its help text and range (`low` and `high` included, `above` excluded)."""
    metadata = {"help": help, "low": low, "high": high, "above": above}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Options:
    """Base of all typed option sets: types and ranges are checked on creation, text is converted."""

    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            name = f"{self.prefix}{field.name}"
            value = coerce(name, getattr(self, field.name), hints[field.name])
            _check_range(name, value, field.metadata)
            object.__setattr__(self, field.name, value)

    @classmethod
    def build(cls: type[T], values: Mapping[str, Any]) -> T:
        """Create options from a mapping; an unknown key is an error that names the nearest right one."""
        names = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in names:
                raise unknown("option", f"{cls.prefix}{key}", [f"{cls.prefix}{name}" for name in names])
        return cls(**values)


@dataclasses.dataclass(frozen=True)
class LabelOptions(Options):
    """Which labels the cross-entropy of training uses; metrics and evaluation always use hard ones."""

    smoothing: float = option(
        0.0, "label smoothing: share of probability taken from the true class", low=0, high=1
    )
    smoothing_kind: Literal["uniform", "others", "random"] = option(
        "uniform", "how it is spread: over all classes, over the others equally, over the others at random"
    )
    smooth_attack: bool = option(True, "smooth the labels of the attack too, not only the weight update's")


def coerce(name: str, value: Any, hint: Any) -> Any:
    """Convert `value` to the type `hint` names, or raise the one-line error that says what is allowed."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if type(None) in args and (value is None or (isinstance(value, str) and value.lower() == "none")):
            return None
        return coerce(name, value, next(arg for arg in args if arg is not type(None)))
    if origin is Literal:
        if isinstance(value, str) and value in args:
            return value
        raise not_allowed(name, value, args)
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            items = (items,)
        return tuple(coerce(name, item, args[0]) for item in items if item != "")
    if origin is dict:
        if isinstance(value, Mapping):
            return dict(value)
        raise UserError(f"{name} is {short(value)}; expected a table of names and values")
    return _scalar(name, value, hint)


def _scalar(name: str, value: Any, hint: Any) -> Any:
    if hint is bool:
        words = {"true": True, "false": False, "1": True, "0": False}
        if isinstance(value, bool):
            return value
        if isinstance(value, (str, int)) and str(value).lower() in words:
            return words[str(value).lower()]
    elif hint in (int, float) and not isinstance(value, bool):
        try:
            number = hint(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # the last from a tensor
            number = None
        # int(2.5) would silently drop the half; float("nan") is a number no setting may have.
        largest = 2**63 - 1 if hint is int else sys.float_info.max
        if number is not None and abs(number) <= largest and float(number) == float(value):
            return number
    elif hint is str:
        text, no_text = str(value), (list, tuple, Mapping, type(None))
        if not isinstance(value, no_text) and text == text.encode(errors="replace").decode():
            return text  # which, unlike a file name that is not UTF-8, can be written to any file
    else:
        return value
    numbers = {int: "an integer below 2**63", float: "a number"}
    kind = {bool: "true or false", str: "text in UTF-8", **numbers}[hint]
    raise UserError(f"{name} is {short(value)}; expected {kind}")


def _check_range(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    for item in value if isinstance(value, tuple) else (value,):
        if not isinstance(item, (int, float)) or isinstance(item, bool):
            continue
        low, high, above = (metadata.get(key) for key in ("low", "high", "above"))
        too_low = (low is not None and item < low) or (above is not None and item <= above)
        if too_low or (high is not None and item > high):
            raise UserError(f"{name} is {item}; allowed: {allowed_range(metadata)}")


def allowed_range(metadata: Mapping[str, Any]) -> str:
    """Describe the range of a field in words; empty if it has none."""
    low, high, above = (metadata.get(key) for key in ("low", "high", "above"))
    if low is not None:
        return f"{low:g} or more" if high is None else f"{low:g} to {high:g}"
    bounds = (("more than", above), ("at most", high))
    return ", ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
