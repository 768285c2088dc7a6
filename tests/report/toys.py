"""Run folders as training leaves them, written in milliseconds: settings, logs, summary, probes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from sora.probes import ProbedModel, create
from sora.runs import RunFolder
from sora.threat import Linf
from tests.probes.toys import images, smooth

EPS = 0.1


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
    folder.mkdir(parents=True)
    run = RunFolder(folder)
    collapse = 2 * steps // 3 if method == "fgsm" else steps + 1
    run.write_config(_config(method, seed, dataset, model))
    for name, rows in _logs(steps, collapse, split).items():
        log = run.open_log(name)  # type: ignore[arg-type]
        for row in rows:
            log.append(row)
        log.close()
    if finished:
        run.write_summary(_summary(method, seed, dataset, model, collapse <= steps, collapse))
    if probes:
        subject = ProbedModel(smooth(), images(8), Linf(EPS))
        for name, options in (("eps-curve", {}), ("landscape", {"points": 5}), ("samples", {})):
            run.write_probe(name, {"probe": name, **create(name, **options).measure(subject)})
    return run


def _config(method: str, seed: int, dataset: str, model: str) -> str:
    options = "{sora.alpha_max: 2.0}" if method == "sora" else "{}"
    return f"""format: 2
recipe: digits
data: {{dataset: {dataset!r}}}
network: {{model: {model!r}}}
threat: {{method: {method}, norm: linf, eps: '{EPS}', set: {options}}}
optimisation: {{epochs: 3, seed: {seed}, lr: 0.2}}
origins: {{lr: flag, model: recipe digits}}
"""


def _logs(steps: int, collapse: int, split: str) -> dict[str, list[dict[str, Any]]]:
    logs: dict[str, list[dict[str, Any]]] = {"metrics": [], "evals": [], "events": []}
    for step in range(1, steps + 1):
        aligned = (0.8 if step < collapse else 0.1) + 0.05 * math.sin(step)
        row = {"step": step, "epoch": 1 + 3 * (step - 1) // steps, "loss": 2.3 * math.exp(-step / steps)}
        logs["metrics"].append(row | {"pert_align": aligned, "linearity": aligned, "step_size": EPS})
    for epoch in (1, 2, 3):
        step = epoch * steps // 3
        accuracy = {
            "clean": 0.3 * epoch,
            "fgsm": 0.2 * epoch,
            "pgd10": 0.0 if step > collapse else 0.1 * epoch,
        }
        attacks = {name: {"n": 100} for name in accuracy}
        place = {"step": step, "epoch": epoch, "split": split}
        logs["evals"].append(place | {"accuracy": accuracy, "attacks": attacks})
    if collapse <= steps:
        logs["events"].append({"event": "alarm", "step": collapse, "epoch": 2, "average": 0.1})
    return logs


def _summary(method: str, seed: int, dataset: str, model: str, collapsed: bool, alarm: int) -> dict[str, Any]:
    accuracy = {"clean": 0.9, "fgsm": 0.85, "pgd10": 0.01} if collapsed else {"clean": 0.88, "fgsm": 0.5}
    accuracy = {"pgd10": 0.45 + 0.01 * seed} | accuracy
    sizes = {"clean": 0.0, "fgsm": EPS, "pgd10": EPS}
    attacks = {
        name: {"n": 360, "low": max(0, share - 0.03), "high": share + 0.03, "eps": sizes[name], "steps": 1}
        for name, share in accuracy.items()
    }
    return {
        "method": method,
        "dataset": dataset,
        "model": model,
        "seed": seed,
        "epochs": 3,
        "parameters": 1234,
        "n_train": 1000,
        "threat": {"norm": "linf", "eps": EPS},
        "accuracy": accuracy,
        "attacks": attacks,
        "fingerprint": {"weights": "w", "data": "d"},
        "pert_align": {"last": 0.1 if collapsed else 0.8, "min": 0.05},
        "co": {
            "verdict": "overfitted" if collapsed else "robust",
            "guard": "warn",
            "events": [{"step": alarm}] if collapsed else [],
        },
        "train_seconds": 20.0 + seed + 5 * len(method),
        "images_per_second": 500.0,
        "peak_memory_mb": 200.0 + 10 * len(method),
        "versions": {"torch": "2.6"},
        "machine": {"system": "a system", "cpu": "a processor", "gpu": None, "threads": 1},
        "warnings": [],
    }
