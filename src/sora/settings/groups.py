"""The groups of settings: each is a dataclass of its own, so that a function can ask for the part it needs.

Names are unique over all groups, which is why flags need no prefix. This file does not import torch: the help
of `sora train` needs nothing else.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from sora._typed import LabelOptions, Options, option


@dataclass(frozen=True)
class DataSettings(Options):
    """Training and test data."""

    dataset: str = option("digits", "data set: a name from `sora list data`, folder:PATH or npz:PATH")
    data_dir: str | None = option(None, "folder of the data sets; default: $SORA_DATA, else the user's cache")
    augment: tuple[str, ...] = option(
        (),
        "augmentations, e.g. crop:4,flip; always applied in the order crop, flip, rotate; '' for none",
    )
    image_sizes: tuple[int, ...] = option(
        (),
        "sides of the training images in pixels, each for an equal share of the epochs, e.g. 16,24,32: small"
        " images take fewer operations; default: their own",
        low=1,
    )
    limit_train: int | None = option(
        None, "train on this many images, class-balanced; the held-out slice shrinks in proportion", low=1
    )
    limit_test: int | None = option(None, "test on this many images, class-balanced", low=1)
    holdout: int | None = option(
        None,
        "images held out from training; 0: none, as in the paper; default: the validation split if the data"
        " set has one, else 10 % of the training images, at most 1,000",
        low=0,
    )


@dataclass(frozen=True)
class NetworkSettings(Options):
    """What is trained."""

    model: str = option("preactresnet18", "network: from `sora list models`, or package.module:function")
    width: int | None = option(None, "channels of the first stage; default: the paper's", low=1)
    mean: tuple[float, ...] | None = option(None, "channel means; the network's first layer subtracts them")
    std: tuple[float, ...] | None = option(
        None, "channel deviations; the network's first layer divides by them", above=0
    )
    init: str | None = option(None, "weights to start from: a file (.safetensors, .pt), a run or zoo:NAME")


@dataclass(frozen=True)
class ThreatSettings(Options):
    """The training method and what it trains against."""

    method: str = option("sora", "training method: a name from `sora list methods`")
    norm: Literal["linf", "l2"] = option("linf", "norm of the perturbation")
    eps: str = option("8/255", "radius in pixel units, a number or a fraction")
    eps_warmup: float = option(0.0, "epochs over which eps grows linearly from 0", low=0)
    set: dict[str, Any] = dataclasses.field(
        default_factory=dict,
        metadata={"help": "a hyper-parameter, e.g. sora.alpha0=0.02 or model.stages=2; may be repeated"},
    )


@dataclass(frozen=True)
class OptimisationSettings(Options):
    """Optimiser and learning rate."""

    epochs: int = option(30, "passes over the training set", low=1)
    batch_size: int = option(128, "images per step", low=1)
    seed: int = option(0, "seed of initial weights, data order and noise", low=0)
    optimizer: Literal["sgd", "adamw", "muon"] = option(
        "sgd",
        "optimiser; muon: orthogonal steps for convolutions and inner linear layers that are normalised"
        " afterwards, made for --lr 0.05 --lr-min 0.0005 --momentum 0.6",
    )
    lr: float = option(0.2, "learning rate: the highest of the schedule", above=0)
    lr_min: float = option(
        0.01, "learning rate of the first and last step (cyclic) or of the last (cosine, one-cycle)", low=0
    )
    schedule: Literal["cyclic", "cosine", "multistep", "one-cycle"] = option(
        "cyclic", "learning rate schedule"
    )
    milestones: tuple[float, ...] = option((0.5, 0.75), "multistep: fractions of the run", low=0, high=1)
    momentum: float = option(0.9, "momentum of SGD and Muon", low=0, high=1)
    cycle_momentum: bool = option(
        False, "cyclic, one-cycle: momentum falls by 0.1 to the peak and rises again"
    )
    weight_decay: float = option(
        5e-4, "weight decay, on all parameters; muon: on those without orthogonal steps", low=0
    )
    ema: float | None = option(
        None, "decay of the moving average of the weights, which replaces the last weights", low=0, high=1
    )
    ema_buffers: Literal["copy", "average", "estimate"] = option(
        "copy", "BatchNorm statistics of averaged weights: the last ones, averaged too, or estimated anew"
    )
    accumulate: int = option(1, "parts a batch is split into, to save memory", low=1)
    on_nonfinite: Literal["stop", "skip"] = option("stop", "what to do when the loss is NaN or infinite")


@dataclass(frozen=True)
class WatchingSettings(Options):
    """What is evaluated, logged and kept, and what happens on an alarm."""

    eval_every: int = option(1, "epochs between evaluations while training; 0: never", low=0)
    attacks: tuple[str, ...] = option(
        ("clean", "fgsm", "pgd10"), "attacks of all evaluations, separated by commas"
    )
    guard: Literal["off", "warn", "stop", "rollback", "pgd"] = option("warn", "what to do on an alarm")
    keep: Literal["last", "best", "best-robust"] = option(
        "last",
        "weights of the final model; best-robust: of the epoch with the highest PGD-10 accuracy on held-out"
        " images; best: with the highest mean of clean and PGD-10 accuracy",
    )
    log_every: int = option(10, "steps between lines of metrics.jsonl", low=1)
    checkpoint_every: int = option(0, "steps between checkpoints; 0: one per epoch", low=0)
    snapshots: bool = option(True, "keep the weights of every epoch and around an alarm, for probes")
    monitor: tuple[str, ...] = option((), "metrics to follow while training, e.g. gradalign,aae,kl,elle,pgd")
    monitor_every: int = option(50, "steps between two measurements of the monitors", low=1)
    tracker: tuple[Literal["tensorboard", "wandb"], ...] = option(
        (), "record the run also with tensorboard, wandb or both, separated by commas; '' for none"
    )
    variant: str | None = option(None, "name of the run's row in tables; default: the method")


@dataclass(frozen=True)
class MachineSettings(Options):
    """Where and how it is computed."""

    device: str = option("auto", "cpu, cuda, cuda:1, mps, xpu ...; auto: a GPU if there is one")
    threads: int = option(0, "CPU threads; 0: torch's choice", low=0)
    precision: Literal["fp32", "bf16", "fp16"] = option("fp32", "number format of the network's passes")
    compile: bool = option(
        False,
        "compile both passes into one graph: takes minutes at first, then steps are faster; only for"
        " fgsm-rs, n-fgsm, sora, in one process",
    )
    sync_bn: bool = option(False, "compute BatchNorm statistics over the batch of all processes")
    out: str | None = option(None, "run folder; default: runs/DATASET-METHOD-sSEED")


GROUPS: dict[str, type[Options]] = {
    "data": DataSettings,
    "network": NetworkSettings,
    "threat": ThreatSettings,
    "labels": LabelOptions,
    "optimisation": OptimisationSettings,
    "watching": WatchingSettings,
    "machine": MachineSettings,
}
