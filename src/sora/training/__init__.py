"""Training: settings, the loop, checkpoints, the guard."""

from sora.training._fit import fit
from sora.training.config import TrainConfig
from sora.training.guard import Guard
from sora.training.loop import train
from sora.training.run import load

__all__ = ["Guard", "TrainConfig", "fit", "load", "train"]
