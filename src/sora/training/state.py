"""All that changes while a run trains, as tensors and plain numbers that a checkpoint can hold."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sora import methods
from sora._devices import world
from sora._task import PLAIN, Task
from sora.data import Augment, Dataset
from sora.errors import UserError
from sora.methods import Method
from sora.settings import Settings
from sora.threat import Threat
from sora.training.guard import Guard
from sora.training.muon import Muon
from sora.training.schedule import rate_drops

RECENT = 50  # steps whose mean PertAlign the summary calls `last`


@dataclass
class State:
    """Everything a killed run needs to go on as if nothing had happened."""

    model: nn.Module
    optimizer: Optimizer
    method: Method
    ema: AveragedModel | None
    scaler: GradScaler = field(default_factory=lambda: GradScaler("cpu", enabled=False))
    guard: Guard = field(default_factory=Guard)
    steps_per_epoch: int = 1
    step: int = 0
    attempt: int = 0
    pending: list[dict[str, float]] = field(default_factory=list)  # steps not yet in metrics.jsonl
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    events: list[dict[str, Any]] = field(default_factory=list)
    best: float = -1.0
    evaluated_epochs: dict[str, Any] = field(default_factory=dict)  # best and last, for `--keep`
    warmup: float = 0.0  # epochs over which eps grows, after a restart from the initial weights
    epoch_open: bool = False  # the steps of the epoch are done, its evaluation is not
    skipped: int = 0
    seconds: float = 0.0
    images: int = 0
    peak_mb: float = 0.0
    previous_log: int | None = None  # the last log step, whose weights become a snapshot if an alarm follows
    previous_weights: dict[str, Tensor] = field(default_factory=dict)  # of that step, once it is left
    event_logged: bool = False  # whether a guard event was logged there

    def place(self, step: int | None = None) -> dict[str, int]:
        """Return where a step is in the run, for a log line; the current step by default."""
        step = self.step if step is None else step
        return {"step": step, "epoch": (step - 1) // self.steps_per_epoch + 1, "attempt": self.attempt}

    @property
    def epoch_ends(self) -> bool:
        """Whether the step just taken was its epoch's last."""
        return self.step % self.steps_per_epoch == 0

    @property
    def evaluated(self) -> nn.Module:
        """The model that is evaluated and stored: the averaged one, if there is one."""
        if self.ema is not None:
            return self.ema.module
        return self.model if self.method.averaged is None else self.method.averaged

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor of the run under one flat name."""
        tensors = prefixed("model", self.model.state_dict()) | prefixed("method", self.method.state_dict())
        if self.ema is not None:
            tensors |= prefixed("ema", self.ema.state_dict())
        for index, slots in self.optimizer.state_dict()["state"].items():
            tensors |= prefixed(f"optimizer.{index}", {k: v for k, v in slots.items() if v is not None})
        if self.previous_log not in (None, self.step):  # at the log step itself they are the model's own
            tensors |= prefixed("previous", self.previous_weights)
        return tensors

    def header(self) -> dict[str, Any]:
        """Return everything else, as plain numbers."""
        return {
            "guard": self.guard.state_dict(),
            "scaler": self.scaler.state_dict(),
            "recent": list(self.recent),
            **{name: getattr(self, name) for name in _PLAIN},
        }

    def restore(self, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Load what `tensors` and `header` returned; tensors keep the memory format they have here."""
        self.restore_weights(tensors)
        self._restore_optimizer(under("optimizer", tensors))
        self.previous_weights = under("previous", tensors)
        self.guard.load_state_dict(header["guard"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(header["scaler"])
        self.recent = deque(header["recent"], maxlen=RECENT)
        for name in _PLAIN:
            setattr(self, name, header[name])

    def restore_weights(self, tensors: dict[str, Tensor]) -> None:
        """Load the raw and the averaged weights of a checkpoint; a method may be what averages them."""
        self.model.load_state_dict(under("model", tensors))
        self.method.load_state_dict(under("method", tensors))
        if self.ema is not None:
            self.ema.load_state_dict(under("ema", tensors))

    def _restore_optimizer(self, tensors: dict[str, Tensor]) -> None:
        self.optimizer.state.clear()
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for name, tensor in tensors.items():
            index, slot = name.split(".", 1)
            parameter = parameters[int(index)]
            # Momentum keeps its parameter's memory format, so that a resumed step runs the same kernels.
            like = parameter if tensor.shape == parameter.shape else tensor
            # Also numbers such as AdamW's `step` must be where the parameter is.
            kept = torch.empty_like(like, device=parameter.device)
            self.optimizer.state[parameter][slot] = kept.copy_(tensor)

    def is_finite(self) -> bool:
        """Return whether all weights and statistics are finite."""
        return all(bool(t.isfinite().all()) for t in (*self.model.parameters(), *self.model.buffers()))


_PLAIN = (
    *("step", "attempt", "pending", "events", "best", "evaluated_epochs", "warmup", "epoch_open"),
    *("skipped", "seconds", "images", "peak_mb", "previous_log", "event_logged"),
)


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under longer names."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return those under a prefix, the inverse of `prefixed`."""
    return {n.removeprefix(f"{prefix}."): t for n, t in tensors.items() if n.startswith(f"{prefix}.")}


def initial_state(
    settings: Settings,
    model: nn.Module,
    dataset: Dataset,
    n_train: int,
    steps_per_epoch: int,
    threat: Threat | None = None,
    task: Task = PLAIN,
) -> State:
    """Build the state before the first step: the method with its memory, the optimiser, the average."""
    device = next(model.parameters()).device
    options = settings.method_options() | settings.smoothing_options()
    method = methods.create(settings.method, threat or settings.threat(), **vars(task), **options).to(device)
    if "index" in method.info.needs and not getattr(dataset, "indexed", True):
        raise UserError(
            f"{settings.method} stores something for each training example: pass tensors, a torch Dataset, or"
            " batches (inputs, targets, index)"
        )
    if settings.accumulate > 1 and method.updates > 1:
        raise UserError(f"accumulate must be 1 with {settings.method}, which replays whole batches")
    if method.info.single_process and world() > 1:
        raise UserError(f"{settings.method} stores what one process has seen; train it with one process")
    size, canvas = dataset.image_size, dataset.shape
    if settings.augment:
        drawn = Augment.parse(settings.augment).draw(1, size, torch.Generator())
        canvas = (dataset.in_channels, *drawn.canvas_size(*size))
    method.setup(
        n_train=n_train,
        shape=dataset.shape,
        canvas=canvas,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        steps_per_epoch=steps_per_epoch,
        classes=len(dataset.classes),
        model=model,
        drops=rate_drops(settings),
    )
    if settings.ema and method.averaged is not None:
        raise UserError(f"{settings.method} averages weights itself; leave out ema")
    fixed = any("BatchNorm" in type(part).__name__ and not part.training for part in model.modules())
    if settings.ema and settings.ema_buffers == "estimate" and fixed:
        raise UserError("ema_buffers estimate would replace the statistics of a BatchNorm in evaluation mode")
    return State(
        model,
        make_optimizer(settings, model),
        method,
        make_average(model, settings.ema, settings.ema_buffers) if settings.ema else None,
        GradScaler(device.type, enabled=settings.precision == "fp16"),  # float16 gradients may underflow
        steps_per_epoch=steps_per_epoch,
    )


def make_average(model: nn.Module, decay: float, buffers: str) -> AveragedModel:
    """Create an average `w_avg = decay w_avg + (1 - decay) w`; the first update copies w.

    With `buffers` "average" they are treated like weights, integers truncated; otherwise they are copied.
    """
    average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=average, use_buffers=buffers == "average")


def make_optimizer(settings: Settings, model: nn.Module) -> Optimizer:
    """Create the optimiser over all parameters, SGD and AdamW in the fused form that CPU and CUDA have.

    Not in float16, where the scaler may skip the first update: torch's fused SGD then leaves its momentum
    uninitialised.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate, decay = settings.lr, settings.weight_decay
    if settings.optimizer == "adamw":
        return AdamW(parameters, lr=rate, weight_decay=decay, fused=True)
    if settings.optimizer == "muon":
        return Muon(model, rate, settings.momentum, decay)
    fused = settings.precision != "fp16"
    return SGD(parameters, lr=rate, momentum=settings.momentum, weight_decay=decay, fused=fused)
