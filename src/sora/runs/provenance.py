"""What a result was made with: code, machine, settings and data, recorded beside every number."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import sora
from sora.data import Dataset
from sora.settings import MAY_CHANGE, Settings

# Settings that are newer than the hashes of existing runs: they are hashed only where they differ from this.
ADDED = {
    "keep": "last",
    "smoothing": 0.0,
    "smoothing_kind": "uniform",
    "smooth_attack": True,
    "ema_buffers": "copy",
}


def settings_hash(settings: Settings) -> str:
    """A short name for all settings that decide the numbers; a checkpoint of another run has another one."""
    values = {key: value for key, value in settings.flat().items() if key not in MAY_CHANGE}
    values = {key: value for key, value in values.items() if key not in ADDED or value != ADDED[key]}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def versions() -> dict[str, str | None]:
    """The code that ran: package versions, and the commit of a source checkout."""
    packages = {name: metadata.version(name) for name in ("torch", "numpy", "safetensors")}
    python = platform.python_version()
    return {"sora": sora.__version__, "commit": commit(), **packages, "python": python}


@functools.cache
def commit() -> str | None:
    """The commit of the checkout this package is imported from, `-dirty` if changed; None if installed."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def machine(device: torch.device | str) -> dict[str, Any]:
    """The hardware that ran: processor, GPU if one was used, torch threads."""
    device = torch.device(device)
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _processor(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
    }


def machine_line(facts: dict[str, Any]) -> str:
    """The hardware in a few words, for the line under a table."""
    threads = f"{facts['threads']} thread{'s' if facts['threads'] != 1 else ''}"
    return f"{facts['gpu'] or facts['cpu']}, {threads}"


def describe_data(dataset: Dataset) -> dict[str, Any]:
    """Which images these are: enough to notice that another set has the same name."""
    return {
        "name": dataset.name,
        "fingerprint": dataset.fingerprint,
        "classes": list(dataset.classes),
        "image_size": list(dataset.image_size),
        "stored_size": list(dataset.train.images.shape[1:3]),
        "channels": dataset.in_channels,
    }


@functools.cache
def _processor() -> str:
    """The processor's model name where the system tells it, else its family."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
