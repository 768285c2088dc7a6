"""Small valid arguments for calls, and arguments that must be refused."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

BATCH, CLASSES = 4, 3


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(2 * 4 * 4, CLASSES))


def x() -> Tensor:
    return torch.rand(BATCH, 2, 4, 4, generator=torch.Generator().manual_seed(1))


def y() -> Tensor:
    return torch.arange(BATCH) % CLASSES


def pairs() -> Any:
    images = (255 * x()).to(torch.uint8).repeat(8, 1, 1, 1)
    return (images, y().repeat(8)), (images, y().repeat(8))


def fit(**changes: Any) -> Any:
    import sora

    given = {"epochs": 1, "batch_size": 8, "attacks": "clean", "holdout": 0, "threads": 1, "quiet": True}
    return sora.fit(model(), pairs(), **{**given, **changes})


@cache
def digits() -> Any:
    import sora

    return sora.data.load("digits")


def _images() -> list[Any]:
    good = x()
    return [
        good * 255, good - 0.5, good * math.nan, good.clone().fill_(math.inf), (255 * good).to(torch.uint8),
        good.long(), good.to(torch.complex64), good[:0], None, 3, "x", [], good.numpy(), good.tolist(),
        torch.tensor(0.5), good.bool(),
    ]  # fmt: skip


def _labels() -> list[Any]:
    good = y()
    return [
        good.float(), good[:-1], good - 5, good + CLASSES, good[:, None], good[:0], None, 3, "x",
        good.tolist(),
        good.numpy(), good * 10**12, -good - 1, nn.functional.one_hot(good, CLASSES),
        good.to(torch.complex64),
    ]  # fmt: skip


def _pairs() -> list[Any]:
    (images, labels), test = pairs()
    return [
        None, 3, [], (), ((images, labels),), ((images.float(), labels), test), ((images[0], labels), test),
        ((images, labels[:-1]), test), ((images, labels - 9), test), ((images, labels * 10**12), test),
        ((images[:0], labels[:0]), test), ((images, labels), (images[:0], labels[:0])), (None, None), "nope",
        ((images, labels), (images[:, :1], labels)), ((images, labels.float() + 0.5), test),
        ((images.numpy(), labels.numpy()), test), ((images, labels), (images[..., :2], labels)),
        "folder:/nope",
    ]  # fmt: skip


NO_IMAGES, NO_LABELS = (st.integers(0, len(f()) - 1).map(lambda i, f=f: f()[i]) for f in (_images, _labels))
NO_PAIRS = st.integers(0, len(_pairs()) - 1).map(lambda i: _pairs()[i])
NO_BOX = st.sampled_from(
    [(1, 0), (0,), (0, 1, 2), 3, "01", (math.nan, 1), (0, 0), ("a", "b"), (None, 1), [], {}]
)
NO_THREAT = st.sampled_from([None, "linf", 8 / 255, 3, [], object, {"eps": 1}])
NO_SHARE = st.one_of(st.sampled_from([-0.1, 1.1, math.nan, "x", None, [], {}]), st.floats(1.01, 1e9))
NO_SIZE = st.sampled_from([0, -1, 1.5, "x", math.nan, [], (3,), -(10**9)])
NO_STD = st.sampled_from([(0, 0, 0), (1, 1), "x", 3, (math.nan,) * 3, (-1, 1, 1), ("a", "b", "c"), []])
NO_LIMIT = st.sampled_from([0, -1, 1.5, "x", math.nan, []])
NO_ATTACKS = st.sampled_from(
    ["", "x", ",", [], (), 3, [3], "pgd0", ["clean", "nope"], [None], "pgd-1", {"a": 1}]
)
