"""One training step: craft, learn, update the state. A method fills in these parts and nothing else.

A training loop calls `step`. It adds to the parameters' gradients; it never zeroes them, never steps an
optimiser and, after the input check of the first batch of each shape, never waits for the device.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from sora import curvature
from sora._checks import check_gradients, check_model, check_threat, checking, outside_box
from sora._passes import Scale, bare, evaluating, fast_order, gradient_of, held, scaled, unscaled
from sora._registry import Registry
from sora._seeds import GENERATOR
from sora._task import CLASSES, PLAIN, Judge, Task
from sora.errors import UserError
from sora.methods._records import Crafted, Hyper, Inputs, Learned, MethodInfo, Smoothing, StepOutput
from sora.threat import Threat

# From a loss and the input leaf to the leaf's gradient; the parameters' gradients are a side effect.
Differentiate = Callable[[Tensor, Tensor], Tensor | None]


def backward(loss: Tensor, leaf: Tensor) -> Tensor | None:
    """Add to every parameter's `.grad` (DDP needs `.backward()`) and return the gradient of the input."""
    loss.backward()  # type: ignore[no-untyped-call]
    return leaf.grad


class Method(nn.Module, ABC):
    """A training method; what it stores between batches are buffers, parameters and `OwnOptimizer`s.

    Args:
        threat: The norm ball and the box.
        hyper: Its hyper-parameters, an instance of `hyper_class`.
    """

    info: ClassVar[MethodInfo]  # the registry entry, set by `register`
    hyper_class: ClassVar[type[Hyper]] = Hyper  # set by `register`, from the annotation of `hyper`

    def __init__(self, threat: Threat, hyper: Hyper) -> None:
        super().__init__()
        self.threat = threat
        self.hyper = hyper
        self.task = PLAIN  # how the model's output is read, its loss, and when it is correct
        self.smoothing = Smoothing()  # the targets of `attack_loss` and `train_loss`
        self.observing = True  # False skips PertAlign and linearity, and their cost
        self.ends_batch = True  # False if more parts of the same batch follow, before the weights change
        self.first_row = 0  # position in its batch of the next part's first row
        self._checked: set[object] = set()

    # What a method may override, in the order in which it is used. The two properties may depend on
    # hyper-parameters, so they are not part of `info`.

    @property
    def updates(self) -> int:
        """Weight updates per batch: how often the caller repeats `step`."""
        return 1

    @property
    def strict_gradient(self) -> bool:
        """Take g' from the loss alone, without penalties, at the cost of another backward pass.

        Methods with penalties offer it as the option `strict`.
        """
        return bool(getattr(self.hyper, "strict", False))

    @property
    def averaged(self) -> nn.Module | None:
        """The model to evaluate and store instead of the trained one, if the method averages weights."""
        return None

    def setup(
        self,
        *,
        n_train: int,
        shape: tuple[int, ...],
        batch_size: int,
        epochs: int,
        steps_per_epoch: int,
        canvas: tuple[int, ...] | None = None,
        classes: int | None = None,
        model: nn.Module | None = None,
        drops: tuple[float, ...] = (),
    ) -> None:
        """Allocate what depends on sizes. Called once, after `.to(device)` and before `load_state_dict`.

        Args:
            n_train: Number of images in the training set.
            shape: Shape of one training input, as the model sees it.
            batch_size: Inputs per batch; the last batch of an epoch may have one more, or fewer.
            epochs: Epochs of the whole training.
            steps_per_epoch: Batches per epoch.
            canvas: Shape of an image on the padded canvas that augmentation crops; `shape` without padding.
            classes: Number of classes, for methods that store something per class.
            model: The model with its initial weights, for methods that copy it or add a head to it.
            drops: The epochs after which the learning rate drops at once; () for a smooth schedule.
        """

    def begin_epoch(self, epoch: int) -> None:
        """Apply a schedule. Called before each epoch, counted from 1."""

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Draw all random numbers of one step, in the form that `step(noise=...)` takes."""
        return ()

    @abstractmethod
    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        """Return the input to train on. Must not add to any parameter's `.grad`."""

    def model_input(self, leaf: Tensor, crafted: Crafted) -> Tensor:
        """Return the input of the update's pass: `leaf`, or a tensor of its values with a graph."""
        return leaf

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        """Return the loss to minimise, given the logits at the crafted input."""
        return self.train_loss(logits, batch.y)

    def update_state(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        """Update what the method stores; return extra numbers for the log."""
        return {}

    def after_update(self, model: nn.Module) -> None:
        """Use the new weights. Called after each step of the model's optimiser, with the bare model."""

    # The losses of a step. They differ from the task's only if labels are smoothed.

    def attack_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the loss that the attack increases."""
        return self.task.loss_of(logits, self.smoothing.targets(logits, y, attack=True))

    def train_loss(self, logits: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        """Return the loss that the weight update decreases."""
        return self.task.loss_of(logits, self.smoothing.targets(logits, y), reduction)

    def attack_gradient(
        self, model: nn.Module, z: Tensor, y: Tensor, loss_scale: Scale = None, *, keep_graph: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient of `attack_loss` with respect to the input at `z`, and the logits there.

        With `keep_graph` the logits carry their graph: put them into `Crafted.kept` and use them in
        `objective`, whose backward pass then runs through both passes.
        """
        return gradient_of(
            lambda logits: self.attack_loss(logits, y), model, z, loss_scale, keep_graph=keep_graph
        )

    # The step itself, the same for all methods.

    def step(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        index: Tensor | None = None,
        transform: Any = None,
        noise: Tensor | tuple[Tensor, ...] | None = None,
        loss_scale: Scale = None,
        channels_last: bool = True,
    ) -> StepOutput:
        """Craft an adversarial batch and add its gradients to the model's parameters.

        Args:
            model: From inputs to logits, in the mode the weights should be trained in.
            x: Inputs inside the box, shape (B, ...).
            y: Targets of the loss: by default class labels, shape (B,).
            index: Each example's position in the training set, for methods that store something per image.
            transform: The augmentation that produced `x`, for the same methods.
            noise: What `draw(x)` returns, to replace the method's own random numbers.
            loss_scale: Factor on the loss in both passes, for float16; gradients the method uses itself
                are divided by it again.
            channels_last: Let images on the CPU pass through the model in channels-last order, which is
                faster; the model and the order of the result stay as they are.
        """
        check_model(model)
        inner = bare(model)  # attack gradients are this process' own, not averaged over ranks
        images = fast_order(inner, x) if channels_last else x
        check, done = self.task.check_trained, self._checked
        checks = checking(inner, x, y, self.threat, self.task, check=check, done=done)
        with held(inner), GENERATOR, checks:
            noise = self.noise_for(x, noise)  # drawn in the memory order of `x`
            batch = Inputs(images, y, noise, index, transform, loss_scale, self.first_row)
            with self.attacking(inner, self.info.crafts_in_attack_mode):
                crafted = self.craft(inner, batch)
            learned = self.learn(model, batch, crafted)
            check_gradients(inner)
        out = self.finish(batch, crafted, learned)
        return out if images is x else out._replace(x_adv=out.x_adv.contiguous())

    def noise_for(self, x: Tensor, given: Tensor | tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
        """Return the random numbers of a step: those given, which may be a single tensor, or new ones."""
        return self.draw(x) if given is None else (given,) if isinstance(given, Tensor) else given

    def learn(
        self, model: nn.Module, batch: Inputs, crafted: Crafted, differentiate: Differentiate = backward
    ) -> Learned:
        """Run the weight update's pass. Its backward pass yields the input gradient g' at no extra cost.

        The model may be wrapped in DDP. The compiled step replaces `.backward()` by its own `differentiate`.
        """
        compared = self.observing and crafted.gradient is not None and crafted.second is None
        wanted = compared or self.info.uses_input_gradient
        leaf, scale = crafted.x_adv.detach().requires_grad_(wanted), batch.loss_scale
        strict = wanted and self.strict_gradient
        with torch.enable_grad():
            logits = model(self.model_input(leaf, crafted))
            loss = self.objective(model, logits, batch, crafted)
            if crafted.penalty is not None:
                loss = loss + crafted.penalty
            if strict:
                plain = scaled(self.train_loss(logits, batch.y), scale)
                (plain_gradient,) = torch.autograd.grad(plain, leaf, retain_graph=True)
            gradient = differentiate(scaled(loss, scale), leaf)
        gradient = plain_gradient if strict else gradient
        gradient = None if gradient is None else unscaled(gradient, scale)
        return Learned(loss.detach(), logits.detach(), gradient)

    @torch.no_grad()
    def finish(self, batch: Inputs, crafted: Crafted, learned: Learned) -> StepOutput:
        """Update the method's state and collect the numbers of the step."""
        extras = {**crafted.extras, **self.update_state(batch, crafted, learned)}
        self.first_row = 0 if self.ends_batch else self.first_row + len(batch.x)
        extras["outside_box"] = outside_box(batch.x, self.threat)  # 1 if a batch after the first is invalid
        nan = torch.full((), math.nan, device=batch.x.device)
        g, g_adv = crafted.gradient, learned.gradient if crafted.second is None else crafted.second
        if not self.observing or g is None or g_adv is None:
            align = linearity = nan
        else:
            extras["zero_gradient"] = (g == 0).float().mean()  # share of pixels the attack cannot move
            align = curvature.pert_align(g, g_adv)
            linearity = curvature.linearity(g, g_adv, self.threat.norm)
        if self.observing and crafted.logits is not None and self.hyper.attack_mode == "train":
            # In one mode: BatchNorm's other statistics would change the loss by themselves.
            start = self.task.loss_of(crafted.logits, batch.y, "none")
            end = self.task.loss_of(learned.logits, batch.y, "none")
            extras["aae_share"] = (start > end).float().mean()
        right = self.task.right(learned.logits, batch.y)
        step_size = nan if crafted.step_size is None else crafted.step_size
        if not isinstance(step_size, Tensor):
            step_size = torch.full((), step_size, device=batch.x.device)
        return StepOutput(
            loss=learned.loss,
            accuracy=nan if right is None else right.float().mean(),
            pert_align=align,
            linearity=linearity,
            step_size=step_size,
            x_adv=crafted.x_adv,
            logits=learned.logits,
            extras=extras,
        )

    def attacking(self, model: nn.Module, active: bool = True) -> AbstractContextManager[None]:
        """Set the mode in which attack passes run, inside the block."""
        return evaluating(model) if active and self.hyper.attack_mode == "eval" else nullcontext()


# The default of a class that is not registered.
Method.info = MethodInfo("", "", Method)  # type: ignore[type-abstract]


class RandomStart(Method):
    """A method whose random numbers are noise inside the ball; its attack starts from there."""

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        """Draw noise inside the ball."""
        return (self.threat.random_start(x),)


# The paper's order, which tables keep; a file not listed here comes after these.
ORDER = "benign fgsm free fgsm_rs gradalign nuat zerograd multigrad n_fgsm atas aaer elle sora pgd trades"
# Methods that the paper does not compare with.
MORE = "fgsm_ckpt gat fgsm_mep fgsm_rs_cs fgsm_mep_cs fgsm_uap fgsm_pco liet tdat fgsm_law fgsm_lass"
METHODS = Registry("method", "sora.methods", MethodInfo, order=(*ORDER.split(), *MORE.split()))
info = METHODS.info
M = TypeVar("M", bound=type[Method])


def register(name: str, summary: str, **facts: Any) -> Callable[[M], M]:
    """Return a class decorator that registers a method; `facts` are the other fields of `MethodInfo`."""

    def add(cls: M) -> M:
        entry = MethodInfo(name, summary, cls, family=name, **facts)
        METHODS.add(entry)
        cls.info = entry
        own = vars(cls).get("hyper_class") or inspect.get_annotations(cls, eval_str=True).get("hyper")
        # A subclass: two methods may share one set of hyper-parameters, but not the prefix in messages.
        pickled_as = {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.hyper_class"}
        cls.hyper_class = type("Hyper", (own or cls.hyper_class,), {"prefix": f"{name}.", **pickled_as})
        return cls

    return add


def preset(name: str, of: str, summary: str, facts: Mapping[str, Any], **hyper: Any) -> None:
    """Register a name for the method `of` with these hyper-parameters; `facts` are its fields that differ."""
    changes = {"name": name, "summary": summary, "preset": hyper, "in_all": True, **facts}
    METHODS.add(replace(METHODS.info(of), **changes))


def names(*, in_all: bool = False) -> list[str]:
    """Return all names in the paper's order; with `in_all` those that `--methods all` includes."""
    return [entry.name for entry in METHODS.entries.values() if entry.in_all] if in_all else METHODS.names()


def create(
    name: str,
    threat: Threat,
    /,
    *,
    loss: str | Judge = CLASSES,
    outputs: Callable[[Any], Tensor] | None = None,
    correct: Judge | None = None,
    class_weights: Sequence[float] | None = None,
    **options: Any,
) -> Method:
    """Return a method.

    Args:
        name: One of `names()`.
        threat: The norm ball and the box.
        loss: `cross-entropy`, `binary`, `multi-label`, or a function `(output, target) -> (B,)`.
        outputs: From what the model returns to a tensor; logits are recognised without it.
        correct: A function `(output, target) -> (B,)` of bools, for the accuracy of another task.
        class_weights: Factor on the loss of each class, for `cross-entropy`.
        options: Its hyper-parameters, and the fields of `Smoothing`.
    """
    entry = info(name)
    task = Task(loss, outputs, correct, class_weights)  # type: ignore[arg-type]
    labels = [field.name for field in fields(Smoothing)]
    smoothing = Smoothing.build({key: value for key, value in options.items() if key in labels})
    hyper = {key: value for key, value in options.items() if key not in labels}
    check_smoothing(entry, smoothing)
    if entry.needs_classes or entry.own_targets:
        task.refuse(entry.name)
    if smoothing.smoothing:
        task.refuse("label smoothing")
    check_threat(threat)
    if threat.norm not in entry.norms:
        raise UserError(f"{name} is not defined for {threat.norm}; allowed: {', '.join(entry.norms)}")
    method = entry.cls(threat, entry.cls.hyper_class.build({**entry.preset, **hyper}))
    method.task = task
    if not entry.own_targets:
        method.smoothing = smoothing
    return method


def check_smoothing(entry: MethodInfo, smoothing: Smoothing) -> None:
    """Raise if labels would be smoothed twice."""
    if entry.own_targets and smoothing.smoothing:
        raise UserError(
            f"smoothing is {smoothing.smoothing:g}, but {entry.name} has targets of its own"
            f" ({entry.family}.{entry.own_targets}); allowed: 0"
        )


def page(name: str) -> str:
    """Return the page of a method or of a preset's method; without a page, the class's docstring."""
    entry = info(name)
    installed = resources.files("sora") / "method_pages"  # where a wheel holds docs/methods
    source = Path(__file__).parents[3] / "docs" / "methods"
    for folder in (installed, source):
        file = folder / f"{entry.family}.md"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return f"# {name}\n\n{inspect.cleandoc(entry.cls.__doc__ or entry.summary)}\n"
