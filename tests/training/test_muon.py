"""Muon: orthogonal steps for weights of layers, Nesterov's for all other parameters."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from sora.settings import Settings
from sora.training.muon import Muon, orthogonalised
from sora.training.state import make_optimizer


def network() -> nn.Sequential:
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten()]
    return nn.Sequential(*convolutions, nn.Linear(8 * 4, 16), nn.Linear(16, 5))


def take_two_steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for seed in (1, 2):
        x = torch.rand(6, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
        model(x).logsumexp(1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("shape", [(8, 50), (50, 8), (16, 16)])
def test_an_orthogonalised_matrix_keeps_its_singular_vectors_and_has_values_near_one(shape) -> None:
    torch.manual_seed(0)
    u, s, v = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    s = torch.linspace(0.2, 1, len(s), dtype=torch.float64)
    found = u.T @ orthogonalised(u * s @ v) @ v.T
    values = found.diagonal()
    torch.testing.assert_close(found, torch.diag(values), atol=1e-10, rtol=0)
    assert values.min() > 0.4
    assert values.max() < 1.3


def test_two_steps_equal_an_independent_calculation() -> None:
    """Written from the definition in numpy, float64: momentum, Nesterov, three iterations, kept length."""
    model = network().double().to(memory_format=torch.channels_last)
    weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    buffers = {name: np.zeros_like(weight) for name, weight in weights.items()}
    optimizer = Muon(model, lr=0.1, momentum=0.6, weight_decay=0.01)
    for seed in (1, 2):
        x = torch.rand(6, 3, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        model(x).logsumexp(1).mean().backward()
        for name, parameter in model.named_parameters():
            weight, gradient = weights[name], parameter.grad.numpy()
            turned = name in ("0.weight", "3.weight")  # the convolution and the first of two linear layers
            gradient = gradient if turned else gradient + 0.01 * weight
            buffers[name] = 0.6 * buffers[name] + gradient
            direction = gradient + 0.6 * buffers[name]
            if turned:
                u, s, v = np.linalg.svd(direction.reshape(len(direction), -1), full_matrices=False)
                s = s / np.linalg.norm(s)
                for _ in range(3):
                    s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
                direction = (u * s @ v).reshape(weight.shape)
                length = np.linalg.norm(weight)
                weight = weight - 0.1 * length * direction / np.linalg.norm(direction)
                weights[name] = weight * length / np.linalg.norm(weight)
            else:
                weights[name] = weight - 0.1 * direction
        optimizer.step()
        optimizer.zero_grad()
        for name, parameter in model.named_parameters():
            np.testing.assert_allclose(parameter.detach().numpy(), weights[name], atol=1e-9)


def test_weights_keep_their_length_and_turn_by_the_rate() -> None:
    model = network()
    before = copy.deepcopy(model)
    optimizer = Muon(model, lr=0.1, momentum=0.6, weight_decay=0.01)
    model(torch.rand(6, 3, 4, 4)).logsumexp(1).mean().backward()
    optimizer.step()
    for place in (0, 3):
        old, new = before[place].weight, model[place].weight
        assert (new.norm() / old.norm()).item() == pytest.approx(1, abs=1e-6)
        cosine = torch.cosine_similarity(old.flatten(), new.flatten(), dim=0).item()
        assert 0.99 < cosine < 0.998  # cos(0.1) is 0.995


def test_other_parameters_take_the_steps_of_nesterov_sgd() -> None:
    model, plain = network(), network()
    for each in (model, plain):
        each[0].weight.requires_grad_(False)
        each[3].weight.requires_grad_(False)
    take_two_steps(model, Muon(model, lr=0.1, momentum=0.6, weight_decay=0.01))
    sgd = torch.optim.SGD(
        [p for p in plain.parameters() if p.requires_grad],
        lr=0.1, momentum=0.6, weight_decay=0.01, nesterov=True,
    )  # fmt: skip
    take_two_steps(plain, sgd)
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


def test_the_scale_of_the_loss_does_not_matter_to_weights_of_layers() -> None:
    turned = []
    for scale in (1.0, 100.0):
        model = network().double()
        optimizer = Muon(model, lr=0.1, momentum=0.0, weight_decay=0.0)
        (scale * model(torch.linspace(0, 1, 288).double().reshape(6, 3, 4, 4)).logsumexp(1).mean()).backward()
        optimizer.step()
        turned.append(model[0].weight.detach())
    torch.testing.assert_close(*turned, atol=1e-5, rtol=1e-4)


def test_weights_without_a_gradient_stay() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    optimizer = make_optimizer(Settings(optimizer="muon"), model)
    optimizer.step()  # no gradients yet
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    optimizer.step()
    torch.testing.assert_close(model.state_dict(), before)
    assert isinstance(optimizer, Muon)
