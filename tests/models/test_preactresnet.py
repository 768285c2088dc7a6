from __future__ import annotations

import torch

from sora.models import create


def test_small_preactresnet_maps_images_to_logits() -> None:
    model = create("preactresnet18", 10, in_channels=1, image_size=16, width=16, stages=2)
    assert model(torch.rand(3, 1, 16, 16)).shape == (3, 10)
