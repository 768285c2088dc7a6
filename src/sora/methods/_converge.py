"""ConvergeSmooth: a limit on how far the clean loss of a batch may be from the mean of the last epoch."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sora._passes import mse, precise
from sora._typed import option
from sora.errors import UserError
from sora.methods._base import Method
from sora.methods._records import Crafted, Inputs, PenaltyHyper
from sora.threat import Threat


@dataclass(frozen=True)
class ConvergeHyper(PenaltyHyper):
    """Hyper-parameters of the constraint and of the two regularisers of its authors."""

    gamma_max: float = option(0.03, "largest difference of losses that is left alone", low=0)
    ratio: float = option(1.0, "the limit is at least gamma_max / ratio", low=1)
    stride: int = option(
        1,
        "epochs around the start, the end and each learning-rate drop in which the constraint is off",
        low=0,
    )
    w2: float = option(1.0, "weight of the clean loss where it is too far from the last epoch's", low=0)
    initialize: bool = option(False, "take the clean loss from the attack's pass, which saves a pass")
    reg_single: bool = option(False, "penalise the squared distance of the logits of the two passes")
    reg_multi: bool = option(False, "add the sign agreement of the two logit changes (no gradient)")
    phi: float = option(0.6, "target of the true class; the others share the rest equally", low=0, high=1)
    lam: float = option(
        10.0, "weight of the two regularisers (lambda), without effect while both are off", low=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initialize and self.reg_multi:
            raise UserError(f"{self.prefix}reg_multi is true; allowed with initialize: false")


class Constraint(nn.Module):
    """The limit around the mean clean loss u of the last epoch, which changed by du from the one before.

    `loss = base + w2 sign(Lb - u) Lb` where `|Lb - u| > gamma = min(max(gamma_max / ratio, du), gamma_max)`,
    Lb the clean loss of the batch. It is off near the start, the end and drops of the learning rate
    (`stride`).

    Buffers: `u`, the mean clean loss of the last epoch, and `du`, its last change; sum and count of this
    epoch; whether the constraint is active in it.
    """

    u: Tensor
    du: Tensor
    total: Tensor
    count: Tensor
    active: Tensor

    def __init__(self, hyper: ConvergeHyper) -> None:
        super().__init__()
        self.hyper = hyper
        self.bounds: tuple[float, ...] = (0,)
        for name in ("u", "du", "total", "count"):
            self.register_buffer(name, torch.zeros(()))
        self.register_buffer("active", torch.zeros((), dtype=torch.bool))

    def setup(self, epochs: int, drops: tuple[float, ...]) -> None:
        """Set the epochs around which the constraint is not active."""
        self.bounds = (0, *drops, epochs)

    def begin_epoch(self, epoch: int) -> None:
        """Close the last epoch: its mean becomes `u`, unless no batch had a finite loss."""
        mean, seen = self.total / self.count, self.count > 0
        self.du.copy_(torch.where(seen, mean - self.u, self.du))
        self.u.copy_(torch.where(seen, mean, self.u))
        self.total.zero_()
        self.count.zero_()
        stride, pairs = self.hyper.stride, zip(self.bounds, self.bounds[1:], strict=False)
        self.active.fill_(any(low + stride < epoch - 1 < high - stride for low, high in pairs))

    def term(self, loss: Tensor) -> Tensor:
        """Return `w2 sign(Lb - u) Lb` where the clean loss Lb is too far from u, otherwise 0."""
        largest = self.hyper.gamma_max
        gamma = self.du.clamp(min=largest / self.hyper.ratio).clamp(max=largest)
        gap = loss.detach() - self.u
        weight = torch.where(self.active & (gap.abs() > gamma), self.hyper.w2 * gap.sign(), 0.0)
        return weight * loss

    @torch.no_grad()
    def add(self, loss: Tensor, count: int) -> None:
        """Count the clean loss of a batch, if it is finite."""
        usable = loss.isfinite()
        self.total.add_(torch.where(usable, count * loss, 0.0))
        self.count.add_(usable * count)


class ConvergeSmooth(Method):
    """A method with the constraint: `loss = CE(z1) + lambda (r1 + r2)` and the constraint's term.

    `r1 = MSE(z1, z0)` with `reg_single`, `r2 = mean(sign(z1 - z0) sign(z0 - zb))` with `reg_multi`; z1 are
    the logits at x_adv, z0 those of the attack's pass, zb those at `clean_input`. `craft` puts z0 first into
    `kept`, with its graph if `keeps_graph`.
    """

    hyper: ConvergeHyper

    def __init__(self, threat: Threat, hyper: ConvergeHyper) -> None:
        super().__init__(threat, hyper)
        self.constraint = Constraint(hyper)

    @property
    def keeps_graph(self) -> bool:
        """Whether the loss differentiates through the attack's pass; as published, it does not."""
        return self.hyper.reg_single or self.hyper.initialize

    def setup(self, **known: Any) -> None:
        """Set the epochs in which the constraint is active."""
        super().setup(**known)
        self.constraint.setup(known["epochs"], known.get("drops", ()))

    def begin_epoch(self, epoch: int) -> None:
        """Take over the mean clean loss of the last epoch."""
        super().begin_epoch(epoch)
        self.constraint.begin_epoch(epoch)

    def clean_input(self, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return where the clean loss is taken."""
        return batch.x

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return smoothed cross-entropy, the regularisers that are on, and the constraint's term."""
        hyper, z0 = self.hyper, crafted.kept[0]
        loss = self.train_loss(logits, batch.y)
        if hyper.reg_single:
            loss = loss + hyper.lam * mse(logits, z0)
        if hyper.initialize:
            clean_loss = self.attack_loss(z0, batch.y)
        else:
            zb = model(self.clean_input(batch, crafted))
            clean_loss = self.train_loss(zb, batch.y)
            if hyper.reg_multi:
                ours, start, clean = (precise(z.detach()) for z in (logits, z0, zb))
                loss = loss + hyper.lam * ((ours - start).sign() * (start - clean).sign()).mean()
        loss = loss + self.constraint.term(clean_loss)
        self.constraint.add(clean_loss, len(batch.x))
        return loss
