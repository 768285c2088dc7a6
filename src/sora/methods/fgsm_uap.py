"""FGSM-UAP, FGSM-CUAP and FGSM-FUAP: the attack starts from perturbations that many images share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import Adam

from sora._passes import cross_entropy, mse, precise
from sora.errors import UserError
from sora.methods import (
    Crafted,
    Hyper,
    Inputs,
    Learned,
    Method,
    OwnOptimizer,
    Smoothing,
    option,
    preset,
    register,
    soft_targets,
)
from sora.methods._features import Features, last_linear
from sora.threat import Threat


@dataclass(frozen=True)
class FGSMUAPHyper(Hyper):
    """The hyper-parameters of FGSM-UAP."""

    groups: Literal["one", "class", "features"] = option(
        "one", "which images share a perturbation: all, a class (CUAP), or a group by features (FUAP)"
    )
    count: int = option(50, "number of perturbations with groups=features: 200 for 100 classes", low=1)
    size: float = option(1.25, "size of the shared perturbations in multiples of eps", low=0)
    nu: float = option(0.4, "label smoothing, spread over all classes", low=0, high=1)
    lam: float = option(10.0, "weight of the squared distance of the logits (lambda)", low=0)
    mu: float = option(0.3, "weight of the past in the momentum", low=0)
    mom_of: Literal["gradient", "sign"] = option(
        "gradient", "what the momentum averages over a group: l1-normalised gradients (code) or their signs"
    )
    head_lr: float = option(1e-3, "learning rate (Adam) of the head that assigns groups by features", low=0)
    strict: bool = option(
        False, "PertAlign from the cross-entropy alone, at the cost of another backward pass"
    )


@register(
    "fgsm-uap",
    "one step from a perturbation that all images share and that follows their mean gradient",
    group="one step, with a memory",
    paper="Pan, Li, Yao, Adversarial Initialization with Universal Adversarial Perturbation:"
    " A New Approach to Fast Adversarial Training",
    venue="AAAI 2024",
    forwards="2",
    backwards="1 in + 1 (two graphs)",
    pass_options=("groups", "strict"),
    paper_cost="-",
    cost=2.5,
    memory="1 graph, 2 in all",
    needs=("setup",),
    single_process=True,
    own_targets="nu",
)
class FGSMUAP(Method):
    """`loss = CE(z1, S_u(nu)) + lambda MSE(z1, z0)`, z0 at a start shared by a group, z1 one step further.

    The start is `s = box(x + clip(u_j))`, for FUAP with noise added to u_j. After the step, for each group j
    in the batch: `m_j = mean(g_i / ||g||_1) + mu m_j` over its images (the norm over the batch),
    `u_j = clamp(u_j + r sign(m_j), -r, r)` with `r = size eps`.

    Stored: `u` (in multiples of its size r, so that it follows eps) and the momentum `m`, one of each per
    group; how many batches had a gradient that is zero or not finite, which changes neither. With groups by
    features also the head that assigns them, and its optimiser.
    """

    hyper_class = FGSMUAPHyper
    hyper: FGSMUAPHyper
    u: Tensor | None
    m: Tensor | None
    skipped: Tensor

    def __init__(self, threat: Threat, hyper: FGSMUAPHyper) -> None:
        super().__init__(threat, hyper)
        self.smoothing = Smoothing(hyper.nu, "uniform")
        self.features = Features()
        self.register_buffer("u", None)
        self.register_buffer("m", None)
        self.register_buffer("skipped", torch.zeros((), dtype=torch.int64))

    def setup(
        self,
        *,
        shape: tuple[int, ...],
        classes: int | None = None,
        model: nn.Module | None = None,
        **_: Any,
    ) -> None:
        """Allocate a perturbation and a momentum for each group, and the head that assigns groups."""
        by, device = self.hyper.groups, self.skipped.device
        if by != "one" and classes is None:
            raise UserError(f"groups={by} needs the number of classes; call setup(classes=)")
        counts = {"one": 1, "class": classes or 1, "features": self.hyper.count}
        self.u = torch.empty(counts[by], *shape, device=device).uniform_(-1, 1).sign_()
        self.m = torch.zeros_like(self.u)
        if by == "features":
            if model is None:
                raise UserError("groups=features needs the network; call setup(model=)")
            inputs, middle = last_linear(model).in_features, counts[by]
            self.head = nn.Sequential(nn.Linear(inputs, middle), nn.Linear(middle, classes or 1)).to(device)
            # Fused: the ordinary form reads its number of steps on the host.
            self.adam = OwnOptimizer(Adam(self.head.parameters(), lr=self.hyper.head_lr, fused=True))

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Noise inside the ball, at which the features of an image are taken."""
        return (self.threat.random_start(x),) if self.hyper.groups == "features" else ()

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """One step of size eps from the perturbation of the image's group, projected onto the ball."""
        if self.u is None:
            raise UserError("this method stores shared perturbations; call setup(...) first")
        x, threat = batch.x, self.threat
        group, offset = self._assign(model, batch)
        shared = self.hyper.size * threat.eps * self.u.to(x)[group]
        start = threat.inside(x, offset + shared)
        g, z0 = self.attack_gradient(model, start, batch.y, batch.loss_scale, keep_graph=True)
        x_adv = threat.projected_step(x, start - x, g, threat.eps)
        return Crafted(x_adv, g, logits=z0.detach(), step_size=threat.eps, kept=(z0, group))

    def _assign(self, model: nn.Module, batch: Inputs) -> tuple[Tensor, Tensor | float]:
        """The group of each image, and the noise that its start contains."""
        if self.hyper.groups == "one":
            return torch.zeros_like(batch.y), 0.0
        if self.hyper.groups == "class":
            return batch.y, 0.0
        noisy = self.threat.clamp(batch.x + batch.noise[0])
        with torch.no_grad(), self.features.recording(model):
            model(noisy)
            features = self.features.last.to(next(self.head.parameters()))
        with torch.enable_grad():
            scores = self.head[0](features)
            logits = self.head[1](scores.relu())
            self.adam.minimize(cross_entropy(logits, soft_targets(logits, batch.y, self.hyper.nu, "uniform")))
        return scores.detach().argmax(1), noisy - batch.x

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Smoothed cross-entropy plus the distance of the logits, with gradients through both passes."""
        return self.train_loss(logits, batch.y) + self.hyper.lam * mse(logits, crafted.kept[0])

    def update_state(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """Move the perturbation of each group in the batch along the momentum of its mean gradient."""
        u, m = cast(Tensor, self.u), cast(Tensor, self.m)
        g, group = precise(cast(Tensor, crafted.gradient)), crafted.kept[1]
        total = g.abs().sum()
        usable = total.isfinite() & (total > 0)
        added = (g.sign() if self.hyper.mom_of == "sign" else g / total).to(m)
        sums = torch.zeros_like(m).index_add_(0, group, added)
        counts = torch.zeros(len(m), device=m.device).index_add_(0, group, torch.ones_like(group).to(m))
        counts = counts.view(-1, *[1] * (m.dim() - 1))
        changes = usable & (counts > 0)
        m.copy_(torch.where(changes, sums / counts.clamp(min=1) + self.hyper.mu * m, m))
        u.copy_(torch.where(changes, (u + m.sign()).clamp(-1, 1), u))
        self.skipped.add_(~usable)
        return {"skipped": self.skipped.clone()}


preset(
    "fgsm-cuap",
    "fgsm-uap",
    "one step from a perturbation that the images of a class share",
    {"memory": "1 graph, 2 per class"},
    groups="class",
)
preset(
    "fgsm-fuap",
    "fgsm-uap",
    "one step from a perturbation that images with similar features share",
    {
        "forwards": "3",
        "cost": 3,
        "memory": "1 graph, 2 per group",
    },
    groups="features",
)
