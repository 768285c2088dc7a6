"""Small models whose behaviour is known, and run folders as training leaves them, written in milliseconds."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sora.probes import ProbedModel, Result, create
from sora.runs import RunFolder
from sora.threat import Linf, Threat

Rows = list[dict[str, Any]]
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
    """A run of 40 steps whose PertAlign falls after step 20, and that raised an alarm at step 22."""
    metrics: Rows = []
    for step in range(1, 41):
        align = 0.9 if step <= 20 else 0.1
        row = {"step": step, "epoch": 1 + step // 21, "loss": 2 - step / 40, "lr": 0.1, "step_size": 0.1}
        metrics.append(row | {"pert_align": align, "linearity": align})
    monitors = [
        {"step": row["step"], "pert_align": row["pert_align"], "kl": 10.0 ** -row["step"], "pgd": 0.4, "n": 8}
        for row in metrics[9::10]
    ]
    accuracies = [{"clean": 0.8, "fgsm": 0.5, "pgd10": 0.4 / epoch} for epoch in (1, 2)]
    evals = [_evaluated(20 * epoch, epoch, own) for epoch, own in enumerate(accuracies, 1)]
    logs = {"metrics": metrics, "monitors": monitors, "evals": evals}
    logs |= {"events": [{"step": 22, "epoch": 2, "event": "alarm"}]}
    return _written(folder, _config("fgsm", 0, "digits", "preactresnet18"), logs)


def write_run(
    folder: Path,
    method: str = "fgsm",
    seed: int = 0,
    dataset: str = "digits",
    model: str = "preactresnet18",
    *,
    steps: int = 60,
    finished: bool = True,
    probes: bool = False,
    split: str = "holdout",
) -> RunFolder:
    """One run; FGSM's collapses with an alarm at two thirds of its steps, others stay robust."""
    collapse = 2 * steps // 3 if method == "fgsm" else steps + 1
    run = _written(folder, _config(method, seed, dataset, model), _logs(steps, collapse, split))
    if finished:
        run.write_summary(_summary(method, seed, dataset, model, collapse <= steps, collapse))
    if probes:
        for name in ("eps-curve", "landscape", "samples"):
            run.write_probe(name, {"probe": name, **stored_result(name)})
    return run


@cache
def stored_result(name: str) -> Result:
    """What a probe finds out about a small model."""
    options = {"landscape": {"points": 5}, "boundary": {"points": 5}}.get(name, {})
    return create(name, **options).measure(ProbedModel(smooth(), images(4), THREAT))


def _written(folder: Path, config: str, logs: dict[str, Rows]) -> RunFolder:
    folder.mkdir(parents=True)
    run = RunFolder(folder)
    run.write_config(config)
    for name, rows in logs.items():
        log = run.open_log(name)  # type: ignore[arg-type]
        for row in rows:
            log.append(row)
        log.close()
    return run


def _evaluated(step: int, epoch: int, accuracy: dict[str, float], **more: Any) -> dict[str, Any]:
    attacks = {name: {"n": 100} for name in accuracy}
    return {"step": step, "epoch": epoch, **more, "accuracy": accuracy, "attacks": attacks}


def _config(method: str, seed: int, dataset: str, model: str) -> str:
    options = "{sora.alpha_max: 2.0}" if method == "sora" else "{}"
    return f"""format: 2
recipe: digits
data: {{dataset: {dataset!r}}}
network: {{model: {model!r}}}
threat: {{method: {method}, norm: linf, eps: '{THREAT.eps}', set: {options}}}
optimisation: {{epochs: 3, seed: {seed}, lr: 0.2}}
origins: {{lr: flag, model: recipe digits}}
"""


def _logs(steps: int, collapse: int, split: str) -> dict[str, Rows]:
    logs: dict[str, Rows] = {"metrics": [], "evals": [], "events": []}
    for step in range(1, steps + 1):
        aligned = (0.8 if step < collapse else 0.1) + 0.05 * math.sin(step)
        row = {"step": step, "epoch": 1 + 3 * (step - 1) // steps, "loss": 2.3 * math.exp(-step / steps)}
        logs["metrics"].append(row | {"pert_align": aligned, "linearity": aligned, "step_size": THREAT.eps})
    for epoch in (1, 2, 3):
        step = epoch * steps // 3
        accuracy = {"clean": 0.3 * epoch, "fgsm": 0.2 * epoch, "pgd10": 0.1 * epoch * (step <= collapse)}
        logs["evals"].append(_evaluated(step, epoch, accuracy, split=split))
    if collapse <= steps:
        logs["events"].append({"event": "alarm", "step": collapse, "epoch": 2, "average": 0.1})
    return logs


def _summary(method: str, seed: int, dataset: str, model: str, collapsed: bool, alarm: int) -> dict[str, Any]:
    accuracy = {"clean": 0.9, "fgsm": 0.85, "pgd10": 0.01} if collapsed else {"clean": 0.88, "fgsm": 0.5}
    verdict = "overfitted" if collapsed else "robust"
    accuracy = {"pgd10": 0.45 + 0.01 * seed} | accuracy
    sizes = {"clean": 0.0, "fgsm": THREAT.eps, "pgd10": THREAT.eps}
    attacks = {
        name: {"n": 360, "low": max(0, share - 0.03), "high": share + 0.03, "eps": sizes[name], "steps": 1}
        for name, share in accuracy.items()
    }
    facts: dict[str, Any] = {"method": method, "dataset": dataset, "model": model, "seed": seed, "epochs": 3}
    facts |= {"parameters": 1234, "n_train": 1000, "threat": {"norm": "linf", "eps": THREAT.eps}}
    facts |= {"accuracy": accuracy, "attacks": attacks, "fingerprint": {"weights": "w", "data": "d"}}
    facts |= {"pert_align": {"last": 0.1 if collapsed else 0.8, "min": 0.05}, "images_per_second": 500.0}
    facts |= {"co": {"verdict": verdict, "guard": "warn", "events": [{"step": alarm}] if collapsed else []}}
    facts |= {"train_seconds": 20.0 + seed + 5 * len(method), "peak_memory_mb": 200.0 + 10 * len(method)}
    machine = {"system": "a system", "cpu": "a processor", "gpu": None, "threads": 1}
    return facts | {"versions": {"torch": "2.6"}, "machine": machine, "warnings": []}
