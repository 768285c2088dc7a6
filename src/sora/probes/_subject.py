"""The model of a run, at its end or at a snapshot, with the images to measure it on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from sora import data, models
from sora.data import Dataset
from sora.errors import UserError
from sora.probes._base import ProbedModel
from sora.runs import RunFolder
from sora.threat import threat
from sora.training.config import TrainConfig
from sora.training.distributed import pick_device
from sora.training.run import build_model, check_own, load, load_weights


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


def load_subject(run: RunFolder, default_images: int, options: SubjectOptions) -> ProbedModel:
    """The model of a run on images of its test set."""
    config = TrainConfig.build(run.read_config())
    weights = None if options.step is None else run.snapshot(options.step)
    if weights is None and not run.has_model():
        steps = ", ".join(map(str, run.snapshots())) or "none"
        raise UserError(f"{run.path} is not finished; --at STEP takes a snapshot, it has: {steps}")
    dataset = data.load(config.dataset, options.data_dir or config.data_dir)
    if weights is None:
        model = load(run.path, model=options.model)
    else:
        model = _network_at(weights, config, dataset, options.model)
    images = min(options.images or default_images, len(dataset.test))
    return ProbedModel(
        model.to(pick_device(options.device)),
        data.split(dataset, holdout=0, limit_test=images).test,
        threat(config.norm, options.eps) if options.eps else config.threat(),
        options.seed,
        options.progress,
    )


def _network_at(weights: Path, config: TrainConfig, dataset: Dataset, repeated: str | None) -> nn.Module:
    """The network with the weights of a snapshot, built from the settings: the run may still be training."""
    check_own(config.model, repeated)
    model, _ = build_model(config, dataset)
    load_weights(model, weights)
    return models.fast_layout(model).eval()
