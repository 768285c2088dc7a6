"""ATAS: a perturbation stored for each image, and a step that shrinks where its gradients are large."""

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from sora.errors import UserError
from sora.methods import Crafted, Inputs, Learned, Method, option, register
from sora.methods._state import Memory, StorageHyper
from sora.threat import Threat, flat_norm


@dataclass(frozen=True)
class ATASHyper(StorageHyper):
    """ATAS's hyper-parameters."""

    beta: float = option(0.5, "weight of the past in an image's squared gradient norm u", low=0, high=1)
    c: float = option(0.01, "gradient norm at which the step is eps", above=0)
    alpha_min: float = option(0.5, "smallest step in multiples of eps", low=0)
    alpha_max: float = option(1.75, "largest step in multiples of eps", low=0)
    warmup: int = option(5, "epochs with a step of eps", low=0)
    reset_every: int = option(10, "epochs between new random perturbations; 0 means never", low=0)
    grad_reference_batch: int = option(0, "batch size for which c is meant; 0 means the actual one", low=0)
    attack_mode: Literal["train", "eval"] = option("eval", "mode of BatchNorm and Dropout during the attack")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha_min > self.alpha_max:
            raise UserError(f"{self.prefix}alpha_min is {self.alpha_min}; allowed: 0 to {self.alpha_max}")


@register(
    "atas",
    "one step from the image's last perturbation, with a step size per image",
    group="one step, with a memory",
    paper="Huang et al., Fast Adversarial Training with Adaptive Step Size",
    venue="IEEE TIP 2023",
    forwards="2",
    backwards="1 in + 1",
    paper_cost="2 / 2",
    cost=2,
    memory="1 per image",
    needs=("setup", "index", "transform", "eval-mode attack"),
    uses_epochs=("reset_every",),
    single_process=True,
)
class ATAS(Method):
    """`x_adv = box(x + clip(s - x + a_i sign(g)))` from `s = box(x + delta_i)`, then `delta_i = x_adv - x`.

    The step is `a_i = 2 eps / (1 + sqrt(u_i) / c)`, clamped, with `u_i = beta u_i + (1 - beta) ||g_i||^2`;
    eps in warm-up.

    Buffers: `delta` on the padded canvas of augmentation, `u` for each image, the epoch, and how many
    gradient norms were not finite and left out.
    """

    hyper: ATASHyper
    u: Tensor
    epoch: Tensor
    skipped: Tensor

    def __init__(self, threat: Threat, hyper: ATASHyper) -> None:
        super().__init__(threat, hyper)
        self.epochs = 0
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64))
        self.register_buffer("skipped", torch.zeros((), dtype=torch.int64))
        self.delta = Memory(hyper, align=True)
        self.register_buffer("u", None)

    def setup(self, *, n_train: int, epochs: int, **known: Any) -> None:
        """Allocate a perturbation for every training image."""
        self.epochs = epochs
        self.delta.allocate(self.epoch.device, n_train=n_train, **known)
        self.delta.stored().uniform_(-self.threat.eps, self.threat.eps)
        self.u = torch.zeros(n_train, device=self.epoch.device)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if f"{prefix}delta" in state_dict:  # an earlier version kept the perturbations in the method itself
            state_dict[f"{prefix}delta.values"] = state_dict.pop(f"{prefix}delta")
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def begin_epoch(self, epoch: int) -> None:
        """Restart from noise every `reset_every` epochs, but not in the last one; u is kept."""
        self.epoch.fill_(epoch)
        every = self.hyper.reset_every
        if epoch == 1 or (every and epoch % every == 0 and epoch != self.epochs):
            self.delta.stored().uniform_(-self.threat.eps, self.threat.eps)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Take one step from the stored perturbation, transformed like the augmented image."""
        x, threat = batch.x, self.threat
        start = threat.clamp(x + threat.project(self.delta.read(batch)))  # eps may have changed
        g, logits = self.attack_gradient(model, start, batch.y, batch.loss_scale)
        size = self._step_sizes(cast(Tensor, batch.index), g)
        x_adv = threat.projected_step(x, start - x, g, size.view(-1, *[1] * (x.dim() - 1)))
        return Crafted(x_adv, g, logits=logits, step_size=size.mean())

    def update_state(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """Store the new perturbation."""
        self.delta.write(batch, crafted.x_adv - batch.x)
        return {"skipped": self.skipped.clone()}

    def _step_sizes(self, index: Tensor, g: Tensor) -> Tensor:
        """Update u of these images and return their steps, eps during warm-up."""
        hyper, eps, old = self.hyper, self.threat.eps, self.u[index]
        reference = hyper.grad_reference_batch
        norm = flat_norm(g).flatten().to(old.dtype) * (len(g) / reference if reference else 1.0)
        warm, usable = self.epoch <= hyper.warmup, norm.isfinite()
        u = torch.where(usable & ~warm, hyper.beta * old + (1 - hyper.beta) * norm.square(), old)
        self.u[index] = u
        self.skipped += (~usable & ~warm).sum()
        steps = adaptive_step(u, eps, hyper.c, hyper.alpha_min * eps, hyper.alpha_max * eps)
        return torch.where(warm, eps, steps)


def adaptive_step(u: Tensor, eps: float, c: float, low: float, high: float) -> Tensor:
    """Return `gamma / (c + sqrt(u))` with `gamma = 2 c eps`, between `low` and `high`."""
    return (2 * eps / (1 + u.sqrt() / c)).clamp(low, high)
