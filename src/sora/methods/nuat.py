"""NuAT: clean cross-entropy plus the nuclear norm of the change of the logits under a one-step attack."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sora._passes import precise
from sora.methods import Crafted, Hyper, Inputs, Method, gradient_of, option, register
from sora.threat import Threat

RAMP_REST = 10  # epochs at the full weight after a ramp


@dataclass(frozen=True)
class NuATHyper(Hyper):
    """NuAT's hyper-parameters."""

    lam: float = option(4.0, "weight of the nuclear norm (lambda): 4 for 10 classes, 1 for 100", low=0)
    alpha: float = option(1.0, "step size in multiples of eps", low=0)
    noise: Literal["signs", "uniform"] = option("signs", "start at random signs of eps/2, or uniform noise")
    ramp: bool = option(False, "raise lambda linearly from 0, full for the last 10 epochs (authors)")
    alternate: bool = option(False, "leave the nuclear norm out of every other batch's attack (authors)")
    attack_mode: Literal["train", "eval"] = option("eval", "mode of BatchNorm and Dropout during the attack")


@register(
    "nuat",
    "clean cross-entropy plus the nuclear norm of the change of the logits",
    group="one step, regularised",
    paper="Sriramanan et al., Towards Efficient and Effective Adversarial Training",
    venue="NeurIPS 2021",
    forwards="4",
    backwards="1 in + 1 (two graphs)",
    pass_options=("alternate",),
    paper_cost="4 / 2",
    cost=3.5,
    memory="1 graph",
    needs=("eval-mode attack",),
    uses_epochs=("ramp",),
    has_pert_align=False,
    needs_classes=True,
    crafts_in_attack_mode=False,
)
class NuAT(Method):
    """`loss = CE(f(x), y) + lambda/B ||f(x_adv) - f(x)||_nuc`; the attack steps on the same sum, from noise.

    Buffers: the current `lam`, and the batches seen in this epoch.
    """

    hyper: NuATHyper
    lam: Tensor
    batches: Tensor

    def __init__(self, threat: Threat, hyper: NuATHyper) -> None:
        super().__init__(threat, hyper)
        self.ramp_epochs = 1
        self.register_buffer("lam", torch.tensor(0.0 if hyper.ramp else hyper.lam))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def setup(self, *, epochs: int, **_: Any) -> None:
        """Set the length of the ramp, which depends on the number of epochs."""
        self.ramp_epochs = max(epochs - RAMP_REST, 1)

    def begin_epoch(self, epoch: int) -> None:
        """Set the weight of this epoch; if batches alternate, the first is one without the nuclear norm."""
        self.batches.zero_()
        if self.hyper.ramp:
            self.lam.fill_(self.hyper.lam * min((epoch - 1) / self.ramp_epochs, 1.0))

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Draw independent signs of eps/2, or uniform noise in the ball."""
        noise = self.threat.random_start(x)
        return (noise.sign_().mul_(self.threat.eps / 2) if self.hyper.noise == "signs" else noise,)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one step on cross-entropy plus nuclear norm, in evaluation mode, projected onto the ball."""
        x, threat = batch.x, self.threat
        length = self.hyper.alpha * threat.eps
        with torch.no_grad():
            reference = model(x)
        weight = self.lam / len(x)
        weight = weight * (self.batches % 2) if self.hyper.alternate else weight
        self.batches.add_(self.ends_batch)
        start = threat.clamp(x + batch.noise[0])

        def guided(z: Tensor) -> Tensor:
            return self.attack_loss(z, batch.y) + weight * nuclear_norm(z - reference)

        with self.attacking(model):
            g, logits = gradient_of(guided, model, start, batch.loss_scale)
        moved = threat.step(start, g, length)
        # Without `gradient`: the weights are not updated on x_adv alone, so PertAlign has no meaning.
        return Crafted(threat.inside(x, moved - x), logits=logits, step_size=length)

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return clean cross-entropy plus the nuclear norm; one pass would mix BatchNorm's statistics."""
        clean = model(batch.x)
        return self.train_loss(clean, batch.y) + self.lam / len(logits) * nuclear_norm(logits - clean)


def nuclear_norm(matrix: Tensor) -> Tensor:
    """Return the sum of the singular values in at least float32; NaN where the matrix is not finite."""
    matrix = precise(matrix)
    finite = matrix.isfinite().all()  # the decomposition raises on anything else
    total = torch.linalg.svdvals(torch.where(finite, matrix, 0.0)).sum()
    return torch.where(finite, total, torch.nan)
