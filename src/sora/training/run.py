"""The parts of one run, built once: data, model, method, optimiser, folder, logs."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from sora import data, methods
from sora._devices import rank, world
from sora._seeds import EPOCH, GENERATOR, INIT, mix, seed_torch, seeded
from sora._task import PLAIN, Task
from sora.data import Augment, Batch, Dataset, GivenData, ImageSet, Loader, Stream, stratified
from sora.data.augment import resized
from sora.data.inputs import STREAM
from sora.errors import UserError
from sora.evaluation.examples import as_examples, in_precision_of
from sora.evaluation.fingerprints import model_fingerprint, task_fingerprint
from sora.methods import Method
from sora.models import fast_layout
from sora.runs import RunFolder, build_model, describe_model
from sora.runs.models import load_initial
from sora.runs.resume import settings_hash
from sora.settings import GIVEN, Resolved, Settings, is_custom
from sora.threat import Threat, threat
from sora.training import distributed, schedule
from sora.training.console import Console
from sora.training.hooks import Hook
from sora.training.journal import Journal
from sora.training.process import StopSignals, TrainingMeter
from sora.training.state import initial_state
from sora.training.trackers import Tracker

ESTIMATED_ON = 1024  # training images that statistics are estimated on, at most


class Run:
    """One run while it trains; hooks get it with every event. Its arguments are those of `train`."""

    def __init__(
        self,
        resolved: Resolved,
        device: torch.device,
        model: nn.Module | None = None,
        dataset: Dataset | None = None,
        hooks: Sequence[Hook] = (),
        quiet: bool = False,
        task: Task = PLAIN,
        box: Sequence[float] | None = (0.0, 1.0),
    ) -> None:
        for hook in hooks:
            if not isinstance(hook, Hook):
                raise UserError(f"hooks must be instances of sora.training.Hook, not {type(hook).__name__}")
        self.resolved = complete(resolved, device, model, dataset)
        self.settings = settings = self.resolved.settings
        self.hooks = (*hooks, *(Tracker(name) for name in settings.tracker))
        self.settings_hash = settings_hash(settings)
        self.device, self.folder = device, RunFolder(settings.folder())
        self.folder.refuse_finished()
        self.rank, self.world = rank(), world()
        self.writes = self.rank == 0  # files; other processes only compute
        self.dataset = dataset or data.load(settings.dataset, settings.data_dir)
        self.task = task
        if settings.keep != "last" and not task.judges:
            raise UserError(f"keep {settings.keep} compares accuracies; pass correct= with your own loss")
        sizes = {name: getattr(settings, name) for name in ("holdout", "limit_train", "limit_test")}
        self.splits = data.split(self.dataset, **sizes)
        augment = Augment.parse(settings.augment)
        self.loader = self._loader(augment)
        if settings.keep != "last" and self.splits.watched_name != "holdout":
            raise UserError(
                f"keep {settings.keep} needs held-out images; {self.dataset.name} is too small for them"
            )
        self.total_steps = settings.epochs * len(self.loader)
        self.threat = threat(settings.norm, settings.eps, box)
        model, self.model_description, new_head = prepare_model(settings, self.dataset, device, model)
        given = self.dataset, self.n_train, len(self.loader), self.threat, task
        self.state = initial_state(settings, model, *given)
        self.network = self.hash_network()
        self.buffers = distributed.RankBuffers(self.state)
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.precision)
        forward = model if half is None else Autocast(model, half, task)
        self.model = distributed.wrap(forward)
        """The model as the weight update calls it: in its precision, its gradients averaged over ranks."""
        self.compiled_step = methods.compiled_step(self.state.method, forward) if settings.compile else None
        self.method: Method = self.state.method
        """The method of the next step; during an alarm, `--guard pgd` replaces it by PGD."""
        title = f"{settings.method} on {settings.dataset}, seed {settings.seed}"
        self.console = Console(title, self.total_steps, settings.epochs, quiet or not self.writes)
        for note in (new_head, STREAM if isinstance(self.loader, Stream) else ""):
            if note:
                self.console.say(note)
        self.signals = StopSignals(self.world)
        self.meter = TrainingMeter(self.state, device)
        self.journal: Journal  # the logs, once the folder is open

    def _loader(self, augment: Augment) -> Loader | Stream:
        settings, dataset = self.settings, self.dataset
        if not isinstance(dataset, GivenData) or dataset.stream is None:
            images = at_test_size(self.splits.train, self.dataset.image_size, augment)
            rest = settings.batch_size, augment, settings.seed, self.device, self.rank, self.world
            return Loader(images, *rest)
        if self.world > 1:
            raise UserError("a stream of batches is trained on in one process; pass tensors or a Dataset")
        dtype = dataset.test.take(torch.arange(1))[0].dtype
        return Stream(dataset.stream, settings.seed, self.device, dtype)

    @property
    def n_train(self) -> int:
        """The number of training examples; of a stream, as its data set says or the first batches suggest."""
        if not isinstance(self.loader, Stream):
            return len(self.splits.train)
        known: Any = getattr(self.loader.batches, "dataset", None)
        return len(known) if hasattr(known, "__len__") else len(self.loader) * self.settings.batch_size

    def batches(self) -> Iterator[Batch]:
        """Yield batches from the current step to the end; follow the state when the guard moves it back."""
        state, seed = self.state, self.settings.seed
        while state.step < self.total_steps:
            epoch, position = divmod(state.step, state.steps_per_epoch)
            if position == 0:
                with GENERATOR:
                    seed_torch(mix(seed, state.attempt, epoch, EPOCH))
                    state.method.threat = self.scheduled_threat  # in which memories may be filled anew
                    state.method.begin_epoch(epoch + 1)
            attempt = state.attempt
            size = schedule.image_size(self.settings.image_sizes, epoch, self.settings.epochs)
            for batch in self.loader.epoch(epoch, attempt, position):
                yield batch if size is None else batch._replace(x=resized(batch.x, size))
                if state.attempt != attempt:
                    break

    def record_event(self, line: dict[str, Any]) -> None:
        """Write a line to the log of events and pass it to the hooks."""
        self.journal.write("events", line)
        for hook in self.hooks:
            hook.on_event(self, line)

    @property
    def scheduled_threat(self) -> Threat:
        """The threat of the current step: while eps grows, a smaller ball."""
        state = self.state
        factor = schedule.eps_factor(self.settings, state.step, state.steps_per_epoch, at_least=state.warmup)
        return self.threat if factor == 1 else self.threat.scaled(factor)

    def hash_network(self) -> str | None:
        """Return the fingerprint of a user's own model and of its flags; settings describe the others."""
        model = self.state.model
        flags = [part.training for part in model.modules()] + [p.requires_grad for p in model.parameters()]
        about: dict[str, Any] = {"flags": flags}
        if (self.task, self.threat.box) != (PLAIN, (0.0, 1.0)):
            about |= {"task": task_fingerprint(self.task), "box": self.threat.box}
        return model_fingerprint(model, about) if is_custom(self.settings.model) else None

    def watched(self, count: int) -> tuple[Tensor, Tensor]:
        """Return at most `count` of the watched images and their labels, always the same."""
        images = self.splits.watched
        chosen = stratified(images.labels, min(count, len(images)), seed=0)
        return next(images.subset(chosen).batches(count, self.device))

    @property
    def evaluated(self) -> nn.Module:
        """The model that is evaluated and stored; with `ema_buffers` estimate a new copy each time."""
        return self.with_statistics(self.state.evaluated) if self.estimates else self.state.evaluated

    @property
    def estimates(self) -> bool:
        """Whether BatchNorm's statistics are estimated for the averaged weights (`ema_buffers`)."""
        return self.state.ema is not None and self.settings.ema_buffers == "estimate"

    def with_statistics(self, model: nn.Module) -> nn.Module:
        """Return a copy of a model with statistics estimated on training images."""
        images = self.splits.sample(min(ESTIMATED_ON, len(self.splits.train)))
        return with_estimated_statistics(model, images, self.settings.batch_size, self.device)


def with_estimated_statistics(
    model: nn.Module, images: ImageSet, batch_size: int, device: torch.device
) -> nn.Module:
    """Return a copy whose BatchNorm statistics are means over batches of clean training images.

    A copy, so that checkpoints do not depend on when it was used. The images are always the same ones for a
    data set, so that the result depends on the weights alone.
    """
    model = copy.deepcopy(model)
    examples = in_precision_of(model, as_examples(images))
    count = math.ceil(len(images) / batch_size)
    # Images may be stored class by class, so each batch takes every count-th one. The batches have nearly the
    # same size, as BatchNorm cannot use a batch of one image.
    parts = [torch.arange(first, len(images), count) for first in range(count)]
    with seeded(0):  # for Dropout, which is active here
        update_bn((examples.take(part, device)[0] for part in parts), model)
    return model


class Autocast(nn.Module):
    """A model whose passes run in `dtype` where that is safe, and whose logits are float32.

    The input stays a float32 leaf, so an attack's gradient, the perturbation and the curvature are float32 as
    well; weights, their gradients and the optimiser's state are never cast.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype, task: Task = PLAIN) -> None:
        super().__init__()
        self.model = model
        self.dtype, self.task = dtype, task

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to float32 logits."""
        with torch.autocast(x.device.type, self.dtype):
            logits = self.task.read(self.model(x))
        return logits.float()


def complete(
    resolved: Resolved, device: torch.device, model: nn.Module | None, dataset: Dataset | None
) -> Resolved:
    """Return the settings with every value filled in and with the names of what is really trained."""
    settings = resolved.settings
    changes: dict[str, Any] = {
        "threads": settings.threads or torch.get_num_threads(),
        # Without an index: each rank has its own device.
        "device": device.type if settings.device == "auto" else settings.device,
        "out": str(settings.folder()),
    }
    if model is not None:
        options = {key: value for key, value in settings.set.items() if not key.startswith("model.")}
        changes |= {"model": f"{GIVEN}{type(model).__name__}", "set": options}
        changes |= dict.fromkeys(("width", "mean", "std"))
    if dataset is not None and settings.dataset != dataset.name:
        changes["dataset"] = f"{GIVEN}{dataset.name.removeprefix(GIVEN)}"
    return replace(resolved, settings=replace(settings, **changes))


def prepare_model(
    settings: Settings, dataset: Dataset, device: torch.device, given: nn.Module | None
) -> tuple[nn.Module, dict[str, Any], str]:
    """Return the model with its first weights, the description that rebuilds it, and if it has a new head."""
    seed_torch(mix(settings.seed, INIT))
    description, said = describe_model(settings, dataset, given), ""
    model = build_model(description).train() if given is None else given
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"the model {settings.model} has no parameters to train")
    if settings.init:
        said = load_initial(model, settings.init, dataset.classes)
    if settings.sync_bn and world() > 1:
        if device.type == "cpu":
            raise UserError("--sync-bn needs GPUs: torch's SyncBatchNorm does not run on CPU")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    return fast_layout(model.to(device)), description, said


def at_test_size(images: ImageSet, size: tuple[int, int], augment: Augment) -> ImageSet:
    """Return training images from which augmentation makes images of the size that the model is tested on."""
    if not augment.size:
        return images.center(*size)
    if size != (augment.size, augment.size):
        raise UserError(
            f"augmentation resized-crop:{augment.size} makes images of another size than the test images,"
            f" {size[0]}x{size[1]}"
        )
    return images
