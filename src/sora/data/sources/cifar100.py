"""`cifar100`: CIFAR-100 with its fine labels."""

from __future__ import annotations

from sora.data._base import Remote, register_packed
from sora.data.sources._cifar import CIFAR100, HOME

register_packed(
    "cifar100",
    summary="CIFAR-100, 32x32 colour, 100 classes",
    counts={"train": 50_000, "test": 10_000},
    files=(
        Remote(f"{HOME}/cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8"),
        Remote(f"{HOME}/cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"),
    ),
)(CIFAR100.convert)
