"""The paper's models, one architecture per file, from pixels in [0, 1] to logits."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from sora._files import PARAMETERS
from sora._registry import Entry, Registry, imported
from sora.errors import UserError, short, unknown
from sora.models._layers import Normalize, check_int, per_channel
from sora.models._layout import fast_layout, own_layout

__all__ = ["ModelInfo", "Normalize", "built_as", "create", "fast_layout", "info", "names", "own_layout"]
__all__ += ["register"]

Builder = Callable[..., nn.Module]
"""It accepts those of `num_classes`, `in_channels` and `image_size` that it needs. Its other parameters, all
with defaults, are options. Its result maps normalised images to logits."""

_BUILT = WeakKeyDictionary[nn.Module, dict[str, Any]]()  # the arguments of models that `create` made
_SIZES = ("num_classes", "in_channels", "image_size")  # determined by the data; the rest are options


@dataclass(frozen=True)
class ModelInfo(Entry):
    """What is known about a model before it is built."""

    build: Builder
    paper: str  # the publication that introduced it

    @property
    def options(self) -> dict[str, Any]:
        """The options it accepts, with their defaults (the paper's model)."""
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in parameters if p.name not in _SIZES}


MODELS = Registry("model", "sora.models", ModelInfo, also=("package.module:function",))
register, info = MODELS.register, MODELS.info


def names() -> list[str]:
    """Return all registered names, sorted."""
    return sorted(MODELS.names())


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
    """Build a model from [0, 1] images to logits, with fresh weights.

    Args:
        name: One of `names()`, or `package.module:function` for a builder of your own. It is called
            with those of `num_classes`, `in_channels` and `image_size` that it accepts, and with
            `width` and the options given; its result is used unchanged, without normalisation.
        num_classes: Number of logits, at least 2.
        in_channels: Channels of the images.
        image_size: Height and width of the images; convolutional models accept any.
        width: Channels of the first stage (length of a token in a ViT); None is the paper's.
        mean: Subtracted from the pixels: a list of one number, or of one per channel; None is 0.
        std: Divides the pixels afterwards, given like `mean`; None is 1.
        **options: Further options of the model, see `info(name).options`.

    Returns:
        A sequence of `normalize` and `network`.
    """
    own = isinstance(name, str) and ":" in name
    build = imported("model", name) if own else info(name).build
    check_int("num_classes", num_classes, low=2)
    check_int("in_channels", in_channels)
    check_int("image_size", image_size)
    sizes = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    if width is not None:
        check_int("width", width)
        options["width"] = width
    if own:
        model = _call(name, build, sizes, options)
        if not isinstance(model, nn.Module):
            raise UserError(f"model {name!r} must return a torch.nn.Module, not {type(model).__name__}")
        return model
    _refuse_too_large(name, build, sizes, options)
    means, stds = per_channel("mean", mean, 0.0, in_channels), per_channel("std", std, 1.0, in_channels)
    normalize = Normalize(means, stds)
    built = nn.Sequential(OrderedDict(normalize=normalize, network=_call(name, build, sizes, options)))
    others = {key: value for key, value in options.items() if key != "width"}
    pixels = {"mean": mean and list(mean), "std": std and list(std)}
    _BUILT[built] = {"name": name, **sizes, "width": width, **pixels, "options": others}
    return built


def built_as(model: nn.Module) -> dict[str, Any] | None:
    """Return the arguments that `create` made a model with; None if it did not, or layers changed since."""
    known = _BUILT.get(model)
    if known is None:
        return None
    with torch.random.fork_rng(devices=[]):
        again = create(**{key: value for key, value in known.items() if key != "options"}, **known["options"])
    shapes = [{name: value.shape for name, value in each.state_dict().items()} for each in (model, again)]
    return dict(known) if shapes[0] == shapes[1] else None


def _refuse_too_large(name: str, build: Builder, sizes: dict[str, int], options: dict[str, Any]) -> None:
    """Raise for a model that would not fit into memory, e.g. of a width mistyped by some zeros."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):  # computes shapes only
            model = _call(name, build, sizes, options)
        count = sum(parameter.numel() for parameter in model.parameters())
    except Exception as error:
        if "overflow" not in str(error.__cause__):
            return  # it cannot be built this way, or not at all, which is reported when it is built
        count = 2**63
    if count > PARAMETERS.value:
        raise PARAMETERS.refusal(f"model {name!r} with {short(options)} ({count:,} parameters or more)")


def _call(name: str, build: Builder, sizes: dict[str, int], options: dict[str, Any]) -> nn.Module:
    """Call a builder with the sizes it accepts and with all options, which it must accept."""
    try:
        signature = inspect.signature(build)
    except (TypeError, ValueError):  # some functions written in C
        raise UserError(f"model {name!r} cannot be called as a builder of models") from None
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
    try:
        return build(**sizes, **options)
    except UserError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"model {name!r} cannot be built with {short(options)}: {short(str(error))}"
        ) from error
