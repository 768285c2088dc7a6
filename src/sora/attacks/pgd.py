"""PGD with random restarts: `x_k+1 = box(x + project(x_k - x + alpha direction(g)))`, g the gradient at x_k.

`direction` is the sign in linf and the unit gradient in l2; see `sora.threat`.
"""

import zlib
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from sora._checks import check_model, check_threat, checking
from sora._passes import ascend, bare, fast_order, frozen
from sora._seeds import generator_for, seeded
from sora._task import PLAIN, Task
from sora.attacks._base import Attack, register
from sora.errors import UserError, short
from sora.threat import Threat, parse_eps

STEP = 0.25  # step size in multiples of eps: 2/255 at 8/255

Select = Literal["any", "max_loss"]


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    steps: int = 10,
    step_size: float | None = None,
    restarts: int = 1,
    select: Select = "any",
    generator: torch.Generator | None = None,
    eot: int = 1,
    *,
    task: Task = PLAIN,
    channels_last: bool = True,
) -> Tensor:
    """Return the best last iterate of projected gradient ascent from random starts, example by example.

    Args:
        model: From inputs to logits; attacked in evaluation mode and left unchanged.
        x: Inputs inside the box, shape (B, ...).
        y: Targets of the loss: by default class labels, shape (B,).
        threat: The norm ball and the box.
        steps: Ascent steps per restart.
        step_size: Length of a step in the units of the input; eps/4 by default.
        restarts: Independent random starts. The first one does not depend on how many there are.
        select: `"any"` returns an input that changes the prediction if any restart reaches one;
            `"max_loss"` the restart of highest loss, as in some published results, and always for a task
            that does not say what is correct.
        generator: Source of the random starts, on the device of `x`; torch's global one by default.
        eot: Passes over which each gradient is averaged, for models with randomness in the forward pass.
        task: The loss and what is correct; by default cross-entropy and classes.
        channels_last: Let images on the CPU pass through the model in channels-last order, which is faster;
            the model and the order of the result stay as they are.
    """
    if not (_is_count(steps) and _is_count(restarts) and _is_count(eot)):
        raise UserError(
            f"pgd with {steps} steps, {restarts} restarts and {eot} passes for eot; all must be 1 or more"
        )
    if select not in get_args(Select):
        raise UserError(f"select is {short(select)}; allowed: {', '.join(get_args(Select))}")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise UserError(f"generator is {short(generator)}; expected a torch.Generator or None")
    check_threat(threat)
    length = STEP * threat.eps if step_size is None else parse_eps(step_size)
    model = bare(model)
    images = fast_order(model, x) if channels_last else x

    def restart(inputs: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        """Return the last iterate of one restart."""
        start = threat.clamp(inputs + noise)

        def loss(logits: Tensor) -> Tensor:
            return task.loss_of(logits, labels)

        return ascend(loss, model, inputs, start, threat, steps, length, eot=eot).x_adv

    @torch.no_grad()
    def score_of(at: Tensor, labels: Tensor) -> Tensor:
        """Return 1 for a success, or the loss."""
        logits = model(at)
        right = task.right(logits, labels) if select == "any" else None
        return task.loss_of(logits, labels, "none") if right is None else (~right).float()

    with checking(model, x, y, threat, task), frozen(model):
        best = restart(images, y, threat.random_start(x, generator))
        score = score_of(best, y) if restarts > 1 else x.new_empty(0)
        for _ in range(restarts - 1):
            noise = threat.random_start(x, generator)
            # A success cannot be improved: later restarts attack the remaining examples only.
            judged = select == "any" and task.judges
            rows = (score <= 0).nonzero()[:, 0] if judged else torch.arange(len(x), device=x.device)
            if len(rows) == 0:
                break
            candidate = restart(images[rows], y[rows], noise[rows])
            new = score_of(candidate, y[rows])
            better = new > score[rows]
            best[rows[better]], score[rows[better]] = candidate[better], new[better]
    return best.contiguous() if x.is_contiguous() else best


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


# A count of 0 matches as well, so that the error says what is wrong with it.
_STEPS, _RESTARTS = r"pgd(?P<steps>0|[1-9]\d{0,4})", r"x(?P<restarts>0|[1-9]\d{0,3})"
_EOT = r"@eot(?P<eot>0|[1-9]\d{0,3})"


@register(
    "pgd-eot",
    "PGD for random models: each of 20 gradients is the mean of 8 passes; pgdK@eotN, pgdKxR@eotN: of N",
    pattern=f"{_STEPS}(?:{_RESTARTS})?{_EOT}",
    examples=("pgd20@eot8",),
    usage="pgdK@eotN",
)
@register(
    "pgd-restarts",
    "PGD with restarts: 50 steps from each of 10 random starts, the best counts; pgdKxR: K steps, R starts",
    pattern=_STEPS + _RESTARTS,
    examples=("pgd50x10",),
    usage="pgdKxR",
)
@register(
    "pgd",
    "PGD: 10 projected steps of eps/4 from one random start; pgdK: K steps",
    pattern=_STEPS,
    examples=("pgd10",),
    usage="pgdK",
)
@dataclass(frozen=True)
class PGD(Attack):
    """Steps of eps/4; an example is robust only if every restart fails."""

    steps: int = 10
    restarts: int = 1
    eot: int = 1
    task: Task = PLAIN
    start = "random"
    stream = zlib.crc32(b"pgd")  # more restarts begin with the same numbers, so they can only be stronger

    def __post_init__(self) -> None:
        for letter, count in (("K", self.steps), ("R", self.restarts), ("N", self.eot)):
            if count < 1:
                form = "pgdK@eotN" if letter == "N" else "pgdK and pgdKxR"
                raise UserError(f"attack {self.name!r}: {letter} in {form} must be 1 or more")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        """Return the last iterate of a successful restart, if there is one."""
        check_model(model)
        generator = generator_for(x.device, seed)
        with frozen(bare(model)), seeded(seed):  # for a model that draws random numbers
            own = {"restarts": self.restarts, "eot": self.eot, "task": self.task}
            return pgd(model, x, y, threat, self.steps, generator=generator, **own)  # type: ignore[arg-type]

    def for_task(self, task: Task) -> Attack:
        """Return the same steps on another loss."""
        return replace(self, task=task)

    def settings(self, threat: Threat) -> dict[str, Any]:
        """Return steps of a quarter of the radius."""
        own = {"steps": self.steps, "step_size": STEP * threat.eps, "restarts": self.restarts}
        return super().settings(threat) | own | ({"eot": self.eot} if self.eot > 1 else {})

    @property
    def passes(self) -> int:
        """Each step, the prediction of each restart if there are several, and the final prediction."""
        return self.restarts * (self.steps * self.eot + (self.restarts > 1)) + 1
