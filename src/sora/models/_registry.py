"""Networks by name: `@register` in an architecture's file, `create` everywhere else."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from sora.errors import UserError, unknown
from sora.models._checks import check_int
from sora.models._normalize import Normalize, per_channel
from sora.models._own import find_builder

Builder = Callable[..., nn.Module]
BuilderT = TypeVar("BuilderT", bound=Builder)

_ENTRIES: dict[str, Entry] = {}
_SIZES = ("num_classes", "in_channels", "image_size")  # what the data decide; the rest are options


@dataclass(frozen=True)
class Entry:
    """A network the library knows: how to build it, and where it comes from."""

    name: str
    build: Builder
    summary: str
    paper: str

    @property
    def options(self) -> dict[str, Any]:
        """The options it takes, with their defaults (the paper's network)."""
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in parameters if p.name not in _SIZES}


def register(name: str, *, summary: str, paper: str) -> Callable[[BuilderT], BuilderT]:
    """Add the decorated class or function to the networks `create` knows.

    It takes those of `num_classes`, `in_channels` and `image_size` that it needs; every other
    parameter, all with defaults, is an option. It maps normalised images to logits.
    """

    def add(build: BuilderT) -> BuilderT:
        if name in _ENTRIES:
            raise ValueError(f"model {name!r} is registered twice")
        _ENTRIES[name] = Entry(name, build, summary, paper)
        return build

    return add


def names() -> list[str]:
    """The names `create` knows, sorted."""
    return sorted(_ENTRIES)


def entry(name: str) -> Entry:
    """What is known about a network."""
    if name not in _ENTRIES:
        raise unknown("model", name, [*_ENTRIES, "package.module:function"])
    return _ENTRIES[name]


def create(
    name: str,
    num_classes: int,
    in_channels: int = 3,
    image_size: int = 32,
    width: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **options: Any,
) -> nn.Module:
    """Build a network from [0, 1] images to logits, with fresh weights.

    Args:
        name: one of `names()`, or `package.module:function` for a builder of your own. It is called
            with those of `num_classes`, `in_channels` and `image_size` that it accepts, and with
            `width` and the options given; what it returns is used as it is, without normalisation.
        num_classes: number of logits, at least 2.
        in_channels: channels of the images.
        image_size: height and width of the images; convolutional networks take any.
        width: channels of the first stage (of a token in a ViT); None is the paper's.
        mean: subtracted from the pixels, a list of one number or of one a channel; None is 0.
        std: what the pixels are divided by afterwards, likewise; None is 1.
        options: what else the network takes, see `entry(name).options`.

    Returns:
        A sequence of `normalize` and `network`.
    """
    check_int("num_classes", num_classes, low=2)
    check_int("in_channels", in_channels)
    check_int("image_size", image_size)
    sizes = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    if width is not None:
        check_int("width", width)
        options["width"] = width
    if ":" in name:
        model = _call(name, find_builder(name), sizes, options)
        if not isinstance(model, nn.Module):
            raise UserError(f"model {name!r} must return a torch.nn.Module, not {type(model).__name__}")
        return model
    build = entry(name).build
    normalize = Normalize(
        per_channel("mean", mean, 0.0, in_channels),
        per_channel("std", std, 1.0, in_channels),
    )
    return nn.Sequential(OrderedDict(normalize=normalize, network=_call(name, build, sizes, options)))


def _call(name: str, build: Builder, sizes: dict[str, int], options: dict[str, Any]) -> nn.Module:
    """Call a builder with the sizes it accepts and all the options, which it must accept."""
    signature = inspect.signature(build)
    parameters = signature.parameters.values()
    accepted = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for option in options:
            if option not in accepted:
                raise unknown(f"option of {name}", option, accepted.difference(_SIZES) or ["(none)"])
        sizes = {size: value for size, value in sizes.items() if size in accepted}
    try:
        signature.bind(**sizes, **options)
    except TypeError as error:
        raise UserError(
            f"model {name!r} needs more than {', '.join(_SIZES)} and its options: {error}"
        ) from error
    return build(**sizes, **options)
