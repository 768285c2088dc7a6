"""The model of a run, at its end or at a snapshot, with the images to measure it on."""

from __future__ import annotations

from dataclasses import dataclass

from sora._devices import pick_device
from sora.errors import UserError
from sora.evaluation.subject import select_test_images
from sora.probes._base import ProbedModel
from sora.runs import RunFolder, describe_model, load_data, load_model
from sora.threat import threat


@dataclass(frozen=True)
class SubjectOptions:
    """Which weights of a run are measured, on which images, under which threat.

    Attributes:
        step: The step of a snapshot; the final weights if not given.
        images: Number of test images, class-balanced; the probe's default if not given.
        eps: Radius; the run's own if not given.
        seed: Seed of random directions and starts.
        model: Repeats the `package.module:function` of a run with a custom network.
        data_dir: Where data sets are; the run's own setting if not given.
        device: `cpu`, `cuda`, `cuda:1` ... or `auto`.
        progress: Show a progress bar on a terminal.
    """

    step: int | None = None
    images: int | None = None
    eps: str | None = None
    seed: int = 0
    model: str | None = None
    data_dir: str | None = None
    device: str = "auto"
    progress: bool = False

    def __post_init__(self) -> None:
        if self.images is not None and self.images < 1:
            raise UserError(f"--limit is {self.images}; allowed: 1 or more")


def load_subject(run: RunFolder, default_images: int, options: SubjectOptions) -> ProbedModel:
    """The model of a run on images of its test set."""
    settings = run.read_settings()
    dataset = load_data(run, settings, data_dir=options.data_dir)
    if options.step is not None:
        # Built from the settings, because the run may still be training and have no final model.
        description = describe_model(settings, dataset)
        model = load_model(description, run.snapshots.file(options.step), options.model)
    elif run.has_model():
        description = run.read_model()
        run.check_weights(description)
        model = load_model(description, run.weights, options.model)
    else:
        steps = ", ".join(map(str, run.snapshots.files())) or "none"
        raise UserError(f"{run.path} is not finished; --at STEP takes a snapshot, it has: {steps}")
    count = options.images or min(default_images, len(dataset.test))
    images, which = select_test_images(dataset, count)
    return ProbedModel(
        model.to(pick_device(options.device)),
        images,
        threat(settings.norm, options.eps) if options.eps is not None else settings.threat(),
        options.seed,
        options.progress,
        dataset.classes,
        which["positions"],
    )
