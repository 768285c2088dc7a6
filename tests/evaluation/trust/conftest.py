"""Two honest networks on digits of 8x8 pixels: one trained adversarially, one not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sora import data
from sora.attacks import pgd
from sora.threat import Linf

EPS = 0.15


def images(count: int, *, train: bool) -> tuple[Tensor, Tensor]:
    dataset = data.load("digits")
    chosen = dataset.train if train else dataset.test
    positions = torch.arange(count)
    return chosen.gather(positions).float().div(255)[:, :, ::2, ::2].contiguous(), chosen.labels[positions]


def trained(steps: int, adversarial: bool) -> nn.Module:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )
    x, y = images(1000, train=True)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        inputs = pgd(model, x[rows], y[rows], Linf(EPS), 3, EPS / 2) if adversarial else x[rows]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), y[rows]).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="session")
def robust() -> nn.Module:
    return trained(70, adversarial=True)


@pytest.fixture(scope="session")
def ordinary() -> nn.Module:
    return trained(60, adversarial=False)


@pytest.fixture(scope="session")
def test_images() -> tuple[Tensor, Tensor]:
    return images(128, train=False)
