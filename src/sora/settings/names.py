"""Names of data sets and networks that settings accept, including objects passed in Python."""

from __future__ import annotations

from sora import data, models

GIVEN = "given:"  # prefix of the name under which a module or tensors passed to `fit` are recorded


def is_given(name: str) -> bool:
    """Whether the name stands for an object passed in Python, which cannot be rebuilt from a file."""
    return name.startswith(GIVEN)


def is_custom(model: str) -> bool:
    """Whether a network is the user's own: a module given in Python, or `package.module:function`."""
    return ":" in model


def check_dataset(name: str) -> None:
    """Raise if there is no such data set."""
    if not is_given(name):
        data.check_name(name)


def check_model(name: str) -> None:
    """Raise if there is no such network; the user's own are imported later, when they are built."""
    if not is_custom(name):
        models.info(name)
