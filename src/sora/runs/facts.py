"""Facts stored with a result: its origin (code, machine, data), its checksum, and required keys.

A run's JSON files may be of unknown origin. Newer versions may add keys: only those named here are checked.
"""

import functools
import json
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import torch

import sora
from sora._files import plain
from sora.data import Dataset
from sora.errors import RunError
from sora.runs.weights import new_digest
from sora.settings.files import CHECKSUM


def versions() -> dict[str, str | None]:
    """Return the code that ran: package versions, and the commit of a source checkout."""
    packages = {name: package_version(name) for name in ("torch", "numpy", "safetensors")}
    python = platform.python_version()
    return {"sora": sora.__version__, "commit": commit(), **packages, "python": python}


package_version = functools.cache(metadata.version)  # it parses a file


@functools.cache
def commit() -> str | None:
    """Return the commit of the checkout of this package, `-dirty` if changed; None if it is installed."""
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
    """Return the hardware that ran: processor, GPU if one was used, torch threads."""
    device = torch.device(device)
    module = torch.get_device_module(device)
    gpu = str(module.get_device_name(device)) if hasattr(module, "get_device_name") else device.type
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _processor(),
        "gpu": None if device.type == "cpu" else gpu,
        "threads": torch.get_num_threads(),
    }


def machine_line(facts: dict[str, Any]) -> str:
    """Describe the hardware in a few words, for the line under a table."""
    threads = f"{facts['threads']} thread{'s' if facts['threads'] != 1 else ''}"
    return f"{facts['gpu'] or facts['cpu']}, {threads}"


@functools.cache
def _processor() -> str:
    """Return the processor's model name where the system tells it, else its family."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def describe_data(dataset: Dataset) -> dict[str, Any]:
    """Describe which images these are: enough to notice that another set has the same name."""
    return {
        "name": dataset.name,
        "fingerprint": dataset.fingerprint,
        "classes": list(dataset.classes),
        "image_size": list(dataset.image_size),
        "stored_size": list(dataset.stored_size),
        "channels": dataset.in_channels,
    }


def with_checksum(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record for a JSON file, with a checksum of its content."""
    record = plain(record)
    return {**record, CHECKSUM: _digest(record)}


def without_checksum(record: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of a record; a `RunError` unless it matches its checksum, if it has one."""
    content = {name: value for name, value in record.items() if name != CHECKSUM}
    if CHECKSUM in record and record[CHECKSUM] != _digest(content):
        raise RunError(
            f"{path} is damaged or was edited: its content does not match its checksum; restore it, move it"
            f" away, or delete {CHECKSUM} in it to accept it as it is"
        )
    return content


def _digest(record: Mapping[str, Any]) -> str:
    digest = new_digest()
    try:
        digest.update(json.dumps(record, sort_keys=True, default=str).encode())
    except (TypeError, ValueError):  # keys of several types, thousands of digits: no record of ours
        return ""
    return digest.hexdigest()


def shape(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Any:
    """Return the type of a JSON table that has these entries; it may have others, which are not checked."""
    fields: list[Any] = [*required.items(), *((name, kind, None) for name, kind in (optional or {}).items())]
    return msgspec.defstruct("Facts", fields)


_LIST: Any = list  # as values, because the types of their elements are made here
_DICT: Any = dict
_TABLE = dict[str, Any]
_THREAT = shape({"norm": str, "eps": float})
_ATTACK = shape(
    {"n": int, "low": float, "high": float},
    {"eps": float | None, "step_size": float | None, "versions": _TABLE | None}
    | dict.fromkeys(("steps", "restarts"), int | None),
)
_RESULT = {"threat": _THREAT, "accuracy": dict[str, float], "attacks": _DICT[str, _ATTACK]}
_EVENT = shape({"step": int}, {"changed": _TABLE | None})  # an alarm
_MACHINE = shape({"system": str, "cpu": str | None, "gpu": str | None, "threads": int})
SUMMARY = shape(  # of `summary.json`
    _RESULT
    | {"method": str, "dataset": str, "model": str, "seed": int, "epochs": int}
    | {"train_seconds": float, "images_per_second": float | None, "versions": shape({"torch": str})}
    # PertAlign: mean of the last 50 steps, and the lowest value of the guard's average.
    | {"pert_align": shape({"last": float | None, "min": float | None})}
    # What the guard saw, and the verdict.
    | {"co": shape({"events": _LIST[_EVENT], "verdict": str | None, "guard": str}, {"watched_steps": int})},
    {"variant": str | None, "parameters": int | None, "n_train": int | None}
    | {"peak_memory_mb": float | None, "warnings": list[str], "logs_blake2b": dict[str, str]}
    | {"machine": _MACHINE | None, "fingerprint": shape({"weights": str, "data": str}) | None}
    | {"data": shape({}, {"fingerprint": str, "classes": list[str] | None}) | None},
)
EVALUATION = shape(  # of one record of `evaluation.json`
    _RESULT | {"predictions": dict[str, str], "num_classes": int, "zero_gradients": float},
    {"dataset": str | None, "verdict": str | None, "fingerprint": _TABLE | None, "void": dict[str, str]}
    | {"void_versions": dict[str, _TABLE | None], "trust": _LIST[shape({"outcome": str})]},
)


def check_result(value: Any, shape: Any, path: Path) -> dict[str, Any]:
    """Return a `SUMMARY` or `EVALUATION`; a `RunError` if it is incomplete, changed or of wrong types."""
    try:
        value = without_checksum(value, path) if isinstance(value, dict) else value
        msgspec.convert(value, shape)
        json.dumps(value, allow_nan=False)  # raises for a number that is too large, which Python reads as inf
        if set(value["attacks"]) != set(value["accuracy"]):
            raise ValueError("attacks and accuracy name different attacks")
    except (ValueError, RecursionError) as error:  # msgspec's error is a ValueError
        raise RunError(f"{path} is damaged ({error}); move it away to go on without it") from None
    return dict(value)
