"""`summary.json`: what came out of a run, in the words and numbers that tables and reports read."""

from __future__ import annotations

import platform
import resource
import sys
from typing import Any

import numpy
import torch

import sora
from sora.evaluation import Evaluation, verdict
from sora.training.config import TrainConfig
from sora.training.state import State, mean


def summarize(
    config: TrainConfig, state: State, found: Evaluation, n_train: int, weights: str
) -> dict[str, Any]:
    """The summary of a finished run; accuracies are fractions of the test set."""
    judged = {"fgsm", "pgd10"} <= found.accuracy.keys()
    return {
        "method": config.method,
        "dataset": config.dataset,
        "model": config.model,
        "seed": config.seed,
        "epochs": config.epochs,
        "n_train": n_train,
        "versions": versions(),
        "train_seconds": round(state.seconds, 3),
        "images_per_second": round(state.images / max(state.seconds, 1e-9), 1),
        "peak_memory_mb": round(peak_memory_mb(torch.device(config.device)), 1),
        "weights": weights,
        **found.record(),
        "pert_align": {"last": mean(list(state.recent)), "min": state.guard.lowest},
        "co": {
            "detected": bool(state.events),
            "verdict": verdict(found.accuracy) if judged else None,
            "events": state.events,
        },
        "skipped_updates": state.skipped,
    }


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    return {
        "sora": sora.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
    }


def peak_memory_mb(device: torch.device) -> float:
    """The most memory used so far: of the device on a GPU, of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, kilobytes here
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
