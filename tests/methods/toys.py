"""Small models and one-step helpers shared by the method tests."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from sora._passes import fast_order
from sora.methods import Method, StepOutput, create
from sora.threat import L2, Linf, Threat

torch.set_num_threads(1)

Ran = tuple[StepOutput, list[Tensor]]
IMAGE = (2, 4, 4)
CLASSES = 3
EPS = 8 / 255
LINF = Linf(EPS)
BALLS: dict[str, Threat] = {"linf": LINF, "l2": L2(0.5)}


def two_layer(dtype: torch.dtype = torch.float64) -> nn.Module:
    """Smooth and free of BatchNorm and Dropout, so that identities are exact."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, CLASSES)).to(dtype)


def batchnorm(dtype: torch.dtype = torch.float32) -> nn.Module:
    """A convolution, BatchNorm and Dropout."""
    torch.manual_seed(4)
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(64, CLASSES)).to(dtype)


def vector(dtype: torch.dtype = torch.float32) -> nn.Module:
    """For inputs of shape (B, 7)."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, CLASSES)).to(dtype)


def line(weights: Tensor) -> nn.Module:
    """Two classes with logits (w.x, 0): for label 1 the loss rises along w everywhere."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(len(weights), 2, bias=False)).to(weights.dtype)
    with torch.no_grad():
        model[1].weight.copy_(torch.stack((weights, torch.zeros_like(weights))))
    return model


def images(count: int = 6, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A batch in [0, 1] with some pixels exactly on the box, and its labels."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.rand(count, *IMAGE, generator=generator, dtype=dtype) * 1.2 - 0.1).clamp(0, 1)
    return x, torch.arange(count) % CLASSES


def uniform(x: Tensor, eps: float = EPS, seed: int = 1) -> Tensor:
    """Noise in [-eps, eps]."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(x.shape, generator=generator, dtype=x.dtype) * 2 - 1) * eps


# For tests that change none of these: `run` trains a copy of the model.
MODEL = two_layer()
X, Y = images()
ETA = uniform(X)
INDEX = torch.tensor([7, 0, 3, 11, 4, 5])


def prepared(
    name: str,
    *,
    threat: Threat = LINF,
    shape: tuple[int, ...] = IMAGE,
    canvas: tuple[int, ...] | None = None,
    epochs: int = 110,
    model: nn.Module = MODEL,
    **options: object,
) -> Any:
    """A method as in the first epoch of training on 12 images in batches of 6."""
    torch.manual_seed(0)
    method = create(name, threat, **options)
    sizes: Any = {"n_train": 12, "batch_size": 6, "steps_per_epoch": 2, "classes": CLASSES}
    method.setup(shape=shape, canvas=canvas, epochs=epochs, model=model, **sizes)
    method.begin_epoch(1)
    return method


def run(method: Method, model: nn.Module = MODEL, x: Tensor = X, y: Tensor = Y, **known: Any) -> Ran:
    """One step on a copy of the model: what it returned and the gradients it left on the parameters."""
    model = copy.deepcopy(model)
    out = method.step(model, x, y, **{"index": INDEX[: len(x)]} | known)
    return out, [p.grad for p in model.parameters() if p.grad is not None]


def passes(
    method: Method, model: nn.Module = MODEL, x: Tensor = X, y: Tensor = Y, **known: Any
) -> tuple[StepOutput, list[tuple[bool, Tensor]]]:
    """One step on a copy of the model: what it returned, the mode and the input of each forward pass."""
    model, seen = copy.deepcopy(model), list[tuple[bool, Tensor]]()
    fast_order(model, x)  # the passes that compare the memory orders are over
    model.register_forward_pre_hook(lambda module, args: seen.append((module.training, args[0].detach())))
    return method.step(model, x, y, **{"index": INDEX[: len(x)]} | known), seen


def rows(phi: float, y: Tensor = Y) -> Tensor:
    """Targets of phi for the true class; the others share the rest equally."""
    return torch.full((len(y), CLASSES), (1 - phi) / (CLASSES - 1)).double().scatter(1, y[:, None], phi)


def assert_loss(ran: Ran, loss: Tensor, model: nn.Module = MODEL) -> None:
    """A step had this loss, written out by hand, and left its gradients."""
    torch.testing.assert_close(ran[0].loss, loss.detach(), rtol=1e-6, atol=0)
    for one, other in zip(ran[1], torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def assert_same(a: Ran, b: Ran) -> None:
    """Two steps made the same adversarial inputs and the same parameter gradients."""
    torch.testing.assert_close(a[0].x_adv, b[0].x_adv, rtol=0, atol=1e-6)
    assert_same_gradients(a[1], b[1])


def assert_same_gradients(a: list[Tensor], b: list[Tensor]) -> None:
    """Two steps left the same gradients, which are not all zero."""
    assert len(a) == len(b) > 0
    assert any((gradient != 0).any() for gradient in a)
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def gradient_at(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Input gradient of the mean cross-entropy, the plain way."""
    leaf = x.clone().requires_grad_()
    nn.functional.cross_entropy(copy.deepcopy(model)(leaf), y).backward()
    assert leaf.grad is not None
    return leaf.grad
