"""What people watch for catastrophic overfitting, each as one number of a batch (appendix J of the paper).

All of them look at a model in evaluation mode and leave it as it was; their random numbers come from a
generator of their own. The attack they compare with is FGSM from the clean image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sora import curvature
from sora._passes import bare, cross_entropy, frozen, input_gradient
from sora.attacks import pgd
from sora.errors import unknown
from sora.threat import Threat


class Look:
    """One batch as a frozen model sees it; every pass is made once, and only if a number needs it."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> None:
        self.model, self.x, self.y, self.threat, self.seed = model, x, y, threat, seed

    def noise(self, stream: int) -> torch.Generator:
        """A generator for one number's randomness, the same at every look."""
        return torch.Generator(self.x.device).manual_seed(self.seed * 8 + stream)

    @cached_property
    def clean(self) -> tuple[Tensor, Tensor]:
        """Input gradient and logits at x."""
        return input_gradient(self.model, self.x, self.y)

    @cached_property
    def x_adv(self) -> Tensor:
        """The FGSM example."""
        return self.threat.clamp(self.x + self.threat.direction(self.clean[0]) * self.threat.eps)

    @cached_property
    def adversarial(self) -> tuple[Tensor, Tensor]:
        """Input gradient and logits at the FGSM example."""
        return input_gradient(self.model, self.x_adv, self.y)

    def losses(self, z: Tensor) -> Tensor:
        """Each example's cross-entropy at z, without a graph."""
        with torch.no_grad():
            return cross_entropy(self.model(z), self.y, "none")


def pert_align(look: Look) -> Tensor:
    """Cosine of the gradients at x and at the FGSM example."""
    return curvature.pert_align(look.clean[0], look.adversarial[0])


def alt_pert_align(look: Look) -> Tensor:
    """AltPertAlign of the same two gradients."""
    return curvature.alt_pert_align(look.clean[0], look.adversarial[0])


def linearity(look: Look) -> Tensor:
    """The linearity coefficient of the same two gradients."""
    return curvature.linearity(look.clean[0], look.adversarial[0], look.threat.norm)


def grad_align(look: Look) -> Tensor:
    """Cosine of the gradients at x and at a random point of the ball (not boxed)."""
    noisy = look.x + look.threat.random_start(look.x, look.noise(1))
    return curvature.pert_align(look.clean[0], input_gradient(look.model, noisy, look.y)[0])


def aae_share(look: Look) -> Tensor:
    """Share of abnormal adversarial examples: their loss is lower than the clean image's."""
    clean, adversarial = (cross_entropy(z[1], look.y, "none") for z in (look.clean, look.adversarial))
    return (clean > adversarial).float().mean()


def kl(look: Look) -> Tensor:
    """KL(P, Q) of the predictions on the clean image and on the FGSM example, as in TRADES."""
    clean, adversarial = (F.log_softmax(z[1].float(), 1) for z in (look.clean, look.adversarial))
    return F.kl_div(adversarial, clean, reduction="batchmean", log_target=True)


def elle(look: Look) -> Tensor:
    """ELLE's squared gap between the loss and the line through two random points of the ball."""
    x, generator = look.x, look.noise(2)
    a, b = (x + look.threat.random_start(x, generator) for _ in range(2))
    share = torch.rand(len(x), generator=generator, device=x.device, dtype=x.dtype)
    between = torch.lerp(a, b, share.view(-1, *[1] * (x.dim() - 1)))
    line = (1 - share) * look.losses(a) + share * look.losses(b)
    return (look.losses(between) - line).square().mean()


def fgsm_accuracy(look: Look) -> Tensor:
    """Accuracy on the FGSM examples."""
    return (look.adversarial[1].argmax(1) == look.y).float().mean()


def pgd_accuracy(look: Look) -> Tensor:
    """Accuracy under PGD-10."""
    found = pgd(look.model, look.x, look.y, look.threat, generator=look.noise(3))
    with torch.no_grad():
        logits: Tensor = look.model(found)
    return (logits.argmax(1) == look.y).float().mean()


DIAGNOSTICS: dict[str, Callable[[Look], Tensor]] = {
    "gradalign": grad_align,
    "aae": aae_share,
    "kl": kl,
    "elle": elle,
    "pertalign": pert_align,
    "altpertalign": alt_pert_align,
    "linearity": linearity,
    "fgsm": fgsm_accuracy,
    "pgd": pgd_accuracy,
}


def check_names(names: Iterable[str]) -> None:
    """Raise for a name that is none of `DIAGNOSTICS`."""
    for name in names:
        if name not in DIAGNOSTICS:
            raise unknown("monitor", name, DIAGNOSTICS)


def diagnose(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, names: Iterable[str] = DIAGNOSTICS, seed: int = 0
) -> dict[str, float]:
    """The named numbers of one batch. The model's weights, buffers, mode and flags stay as they are."""
    model = bare(model)
    with frozen(model):
        look = Look(model, x, y, threat, seed)
        found = {name: DIAGNOSTICS[name](look) for name in names}
        return dict(zip(found, torch.stack([v.float() for v in found.values()]).tolist(), strict=True))
