"""Small valid arguments for calls, and arguments that must be refused."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

import sora

CLASSES = 3
threat = sora.Linf("8/255")
method = sora.methods.create("sora", threat)
model = nn.Sequential(nn.Flatten(), nn.Linear(2 * 4 * 4, CLASSES))
x = torch.rand(4, 2, 4, 4, generator=torch.Generator().manual_seed(1))
y = torch.arange(4) % CLASSES
g = torch.ones(2, 3)
images, labels = (255 * x).to(torch.uint8).repeat(8, 1, 1, 1), y.repeat(8)
test = (images, labels)
pairs = (test, test)


def fit(**changes: Any) -> Any:
    """Train on a few images."""
    given = {"epochs": 1, "batch_size": 8, "attacks": "clean", "holdout": 0, "threads": 1, "quiet": True}
    return sora.fit(model, pairs, **{**given, **changes})


NO_IMAGES = st.sampled_from([
    x * 255, x - 0.5, x * math.nan, x.clone().fill_(math.inf), (255 * x).to(torch.uint8), x.long(),
    x.to(torch.complex64), x[:0], None, 3, "x", [], x.numpy(), x.tolist(), torch.tensor(0.5), x.bool(),
])  # fmt: skip
NO_LABELS = st.sampled_from([
    y.float(), y[:-1], y - 5, y + CLASSES, y[:, None], y[:0], None, 3, "x", y.tolist(), y.numpy(), y * 10**12,
    -y - 1, nn.functional.one_hot(y, CLASSES), y.to(torch.complex64),
])  # fmt: skip
NO_PAIRS = st.sampled_from([
    None, 3, [], (), (test,), ((images.float(), labels), test), ((images[0], labels), test),
    ((images, labels[:-1]), test), ((images, labels - 9), test), ((images, labels * 10**12), test),
    ((images[:0], labels[:0]), test), (test, (images[:0], labels[:0])), (None, None), "nope",
    (test, (images[:, :1], labels)), ((images, labels.float() + 0.5), test),
    ((images.numpy(), labels.numpy()), test), (test, (images[..., :2], labels)), "folder:/nope",
])  # fmt: skip
BOXES = [(1, 0), (0,), (0, 1, 2), 3, "01", (math.nan, 1), (0, 0), ("a", "b"), (None, 1), [], {}]
NO_BOX = st.sampled_from(BOXES)
NO_THREAT = st.sampled_from([None, "linf", 8 / 255, 3, [], object, {"eps": 1}])
NO_SHARE = st.one_of(st.sampled_from([-0.1, 1.1, math.nan, "x", None, [], {}]), st.floats(1.01, 1e9))
NO_SIZE = st.sampled_from([0, -1, 1.5, "x", math.nan, [], (3,), -(10**9)])
NO_STD = st.sampled_from([(0, 0, 0), (1, 1), "x", 3, (math.nan,) * 3, (-1, 1, 1), ("a", "b", "c"), []])
NO_LIMIT = st.sampled_from([0, -1, 1.5, "x", math.nan, []])
ATTACKS = ["", "x", ",", [], (), 3, [3], "pgd0", ["clean", "nope"], [None], "pgd-1", {"a": 1}]
NO_ATTACKS = st.sampled_from(ATTACKS)
NO_CLASSES = st.sampled_from([-1, 0, 99, "x", 1.5])
NO_AUGMENT = st.sampled_from([("crop:x",), ("nope",), ("crop:-1",), 3, ("rotate:x",)])
