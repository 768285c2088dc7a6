"""Small models whose behaviour is known, and run folders that hold nothing but logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sora.probes import ProbedModel, Result, create
from sora.runs import RunFolder
from sora.threat import Linf, Threat

THREAT = Linf(0.1)
torch.set_num_threads(1)


def images(count: int = 12, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, 4, 4, generator=generator), torch.arange(count) % 2


def smooth(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))


class Bumpy(nn.Module):
    """One feature, the mean pixel t: class 1 for t over 0.3, except in a narrow band around 0.4.

    The band makes FGSM accuracy rise again once the step has crossed it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(10.0))

    def forward(self, x: Tensor) -> Tensor:
        t = x.flatten(1).mean(1)
        band = ((t > 0.35) & (t < 0.45)).float()
        return torch.stack((torch.zeros_like(t), self.slope * (t - 0.3) - 20 * band), 1)


def measure(
    name: str, model: nn.Module, data: tuple[Tensor, Tensor], threat: Threat = THREAT, **options: Any
) -> Result:
    """The result of a probe that measures a model."""
    return create(name, **options).measure(ProbedModel(model, data, threat))


def logged_run(folder: Path) -> RunFolder:
    """A run of 40 steps whose PertAlign falls after step 20, where there is an alarm."""
    folder.mkdir(parents=True)
    run = RunFolder(folder)
    run.write_config("method: fgsm\n")
    logs = {name: run.open_log(name) for name in ("metrics", "monitors", "evals", "events")}
    for step in range(1, 41):
        align = 0.9 if step <= 20 else 0.1
        row = {"step": step, "epoch": 1 + step // 21, "loss": 2 - step / 40, "lr": 0.1, "step_size": 0.1}
        logs["metrics"].append(row | {"pert_align": align, "linearity": align})
        if step % 10 == 0:
            logs["monitors"].append(
                {"step": step, "pert_align": align, "kl": 10.0**-step, "pgd": 0.4, "n": 8}
            )
    for epoch, step in ((1, 20), (2, 40)):
        accuracy = {"clean": 0.8, "fgsm": 0.5, "pgd10": 0.4 / epoch}
        attacks = {name: {"n": 100} for name in accuracy}
        logs["evals"].append({"step": step, "epoch": epoch, "accuracy": accuracy, "attacks": attacks})
    logs["events"].append({"step": 22, "epoch": 2, "event": "alarm"})
    for log in logs.values():
        log.close()
    return run
