"""What methods store per image or per row: number format and place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sora.methods import create

from .toys import IMAGE, LINF, images, run, two_layer

PER_IMAGE = {"atas": 1, "fgsm-ep": 1, "fgsm-mep": 2, "fgsm-mep-cs": 2, "fgsm-pco": 1}
N = 12
SIZES: Any = {"n_train": N, "shape": IMAGE, "batch_size": 6, "epochs": 30, "steps_per_epoch": 2}
each_method = pytest.mark.parametrize(("name", "count"), PER_IMAGE.items())


def stored(name: str, device: str = "cpu", **options: object) -> list[Tensor]:
    """The buffers with something for every pixel of every training image."""
    method = create(name, LINF, **options).to(device)
    method.setup(**SIZES)
    return [buffer for buffer in method.buffers() if buffer.shape == (N, *IMAGE)]


@each_method
def test_half_precision_halves_what_is_stored(name: str, count: int) -> None:
    full, half = stored(name), stored(name, dtype="float16")
    assert len(full) == len(half) == count
    assert sum(tensor.nbytes for tensor in full) == count * N * 4 * torch.Size(IMAGE).numel()
    assert 2 * sum(tensor.nbytes for tensor in half) == sum(tensor.nbytes for tensor in full)


@each_method
def test_the_host_stores_on_request_what_the_device_does_otherwise(name: str, count: int) -> None:
    assert [tensor.device.type for tensor in stored(name, "meta")] == ["meta"] * count
    assert [tensor.device.type for tensor in stored(name, "meta", storage="cpu")] == ["cpu"] * count


@each_method
def test_the_attack_depends_on_the_format_by_rounding_and_not_on_the_place(name: str, count: int) -> None:
    model, (x, y), found = two_layer(), images(), []
    for options in ({}, {"storage": "cpu"}, {"dtype": "float16"}):
        torch.manual_seed(0)
        method = create(name, LINF, **options)
        method.setup(**SIZES)
        method.begin_epoch(1)
        found.append(run(method, model, x, y, index=torch.arange(6))[0].x_adv)
    assert torch.equal(found[0], found[1])
    changed = (found[0] - found[2]).abs() > 1e-4
    assert changed.double().mean() < 0.02  # rounding may turn the sign of a gradient that is almost zero
