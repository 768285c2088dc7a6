"""FGSM-UAP, FGSM-CUAP and FGSM-FUAP: the attack starts from perturbations that many images share."""

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import Adam

from sora._passes import cross_entropy, mse, precise, unscaled
from sora.errors import UserError
from sora.methods import (
    Crafted,
    Inputs,
    Learned,
    Method,
    OwnOptimizer,
    PenaltyHyper,
    Smoothing,
    option,
    preset,
    register,
    soft_targets,
)
from sora.methods._features import Features, last_linear
from sora.threat import Threat


@dataclass(frozen=True)
class FGSMUAPHyper(PenaltyHyper):
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
    momentum_of: Literal["both", "attack"] = option(
        "both", "gradient that the momentum uses: the attack's plus the penalty's (code), or the attack's"
    )
    head_lr: float = option(1e-3, "learning rate (Adam) of the head that assigns groups by features", low=0)


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
    cost=2.5,
    memory="1 graph, 2 in all",
    needs=("setup",),
    single_process=True,
    own_targets="nu",
)
class FGSMUAP(Method):
    """`loss = CE(z1, S_u(nu)) + lambda MSE(z1, z0)`, z0 at a start shared by a group, z1 one step further.

    The start is `s = box(x + clip(u_j))`, for FUAP with noise added to u_j. After the step, for each group j
    in the batch: `m_j = mean(G_i / ||G||_1) + mu m_j` over its images (the norm over the batch),
    `u_j = clamp(u_j + r sign(m_j), -r, r)` with `r = size eps`. G is the gradient at s of the attack's loss
    plus that of the penalty: in the authors' code the update's backward pass adds to the stored gradient.

    Stored: `u` (in multiples of its size r, so that it follows eps) and the momentum `m`, one of each per
    group; how many batches had a gradient that is zero or not finite, which changes neither. With groups by
    features also the head that assigns them, and its optimiser.
    """

    hyper: FGSMUAPHyper
    u: Tensor | None
    m: Tensor | None
    skipped: Tensor

    def __init__(self, threat: Threat, hyper: FGSMUAPHyper) -> None:
        super().__init__(threat, hyper)
        self.smoothing = Smoothing(hyper.nu, "uniform")
        self.features = Features()
        self.parts: list[tuple[Tensor, ...]] = []  # what the parts of one batch leave until its last part
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
                raise UserError("groups=features needs the model; call setup(model=)")
            inputs, middle = last_linear(model).in_features, counts[by]
            self.head = nn.Sequential(nn.Linear(inputs, middle), nn.Linear(middle, classes or 1)).to(device)
            # Fused: the ordinary form reads its number of steps on the host.
            self.adam = OwnOptimizer(Adam(self.head.parameters(), lr=self.hyper.head_lr, fused=True))

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Draw noise inside the ball, at which the features of an image are taken."""
        return (self.threat.random_start(x),) if self.hyper.groups == "features" else ()

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one step of size eps from the perturbation of the image's group, projected onto the ball."""
        if self.u is None:
            raise UserError("this method stores shared perturbations; call setup(...) first")
        x, threat = batch.x, self.threat
        group, offset, features = self._assign(model, batch)
        shared = self.hyper.size * threat.eps * self.u.to(x)[group]
        start = threat.inside(x, offset + shared).requires_grad_()  # the update's backward pass adds to it
        g, z0 = self.attack_gradient(model, start, batch.y, batch.loss_scale, keep_graph=True)
        x_adv = threat.projected_step(x, start.detach() - x, g, threat.eps)
        kept = (z0, start, group, *features)
        return Crafted(x_adv, g, logits=z0.detach(), step_size=threat.eps, kept=kept)

    @torch.no_grad()
    def _assign(self, model: nn.Module, batch: Inputs) -> tuple[Tensor, Tensor | float, tuple[Tensor, ...]]:
        """Return the group of each image, the noise that its start contains, and what assigned the group."""
        if self.hyper.groups == "one":
            return torch.zeros_like(batch.y), 0.0, ()
        if self.hyper.groups == "class":
            return batch.y, 0.0, ()
        noisy = self.threat.clamp(batch.x + batch.noise[0])
        with self.features.recording(model):
            model(noisy)
            features = self.features.last.to(next(self.head.parameters()))
        return self.head[0](features).argmax(1), noisy - batch.x, (features, batch.y)

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return smoothed cross-entropy plus the distance of the logits, differentiable in both passes."""
        return self.train_loss(logits, batch.y) + self.hyper.lam * mse(logits, crafted.kept[0])

    def update_state(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """Move each group's perturbation along the momentum of its mean gradient, once per batch."""
        _, start, *known = crafted.kept
        g = precise(cast(Tensor, crafted.gradient))
        if self.hyper.momentum_of == "both":
            g = g + unscaled(precise(cast(Tensor, start.grad)), batch.loss_scale)
        if batch.first_row == 0:
            self.parts = []
        self.parts.append((g, *known))
        if self.ends_batch:
            gradients, *rest = zip(*self.parts, strict=True)
            images = batch.first_row + len(batch.x)
            # The gradients of a part are those of its mean loss.
            g = torch.cat([part * (len(part) / images) for part in gradients])
            self._move(g, *map(torch.cat, rest))
            self.parts = []
        return {"skipped": self.skipped.clone()}

    def _move(self, g: Tensor, group: Tensor, *features: Tensor) -> None:
        """Update momentum and perturbations by a batch's gradients, and train the head, if there is one."""
        u, m = cast(Tensor, self.u), cast(Tensor, self.m)
        total = g.abs().sum()
        usable = total.isfinite() & (total > 0)
        added = (g.sign() if self.hyper.mom_of == "sign" else g / total).to(m)
        sums = torch.zeros_like(m).index_add_(0, group, added)
        counts = m.new_zeros(len(m)).index_add_(0, group, torch.ones_like(group).to(m))
        counts = counts.view(-1, *[1] * (m.dim() - 1))
        changes = usable & (counts > 0)
        m.copy_(torch.where(changes, sums / counts.clamp(min=1) + self.hyper.mu * m, m))
        u.copy_(torch.where(changes, (u + m.sign()).clamp(-1, 1), u))
        self.skipped.add_(~usable)
        if features:
            inputs, y = features
            with torch.enable_grad():
                logits = self.head[1](self.head[0](inputs).relu())
                targets = soft_targets(logits, y, self.hyper.nu, "uniform")
                self.adam.minimize(cross_entropy(logits, targets))


_cuap = {"memory": "1 graph, 2 per class"}
_fuap = {"forwards": "3", "cost": 3, "memory": "1 graph, 2 per group"}
_class = "one step from a perturbation that the images of a class share"
_features = "one step from a perturbation that images with similar features share"
preset("fgsm-cuap", "fgsm-uap", _class, _cuap, groups="class")
preset("fgsm-fuap", "fgsm-uap", _features, _fuap, groups="features")
