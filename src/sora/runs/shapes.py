"""The parts of a run's JSON files that programs rely on; the files may be of unknown origin.

Files of older versions lack some keys, and newer ones may add others: only the keys named here are checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from typing_extensions import Required, TypedDict

from sora.errors import RunError


class ThreatFacts(TypedDict):
    """The norm and radius of an evaluation."""

    norm: str
    eps: float


class AttackFacts(TypedDict, total=False):
    """One attack of an evaluation."""

    n: Required[int]
    low: Required[float]
    high: Required[float]
    eps: float | None
    steps: int | None
    step_size: float | None
    restarts: int | None
    versions: dict[str, Any] | None


class EventFacts(TypedDict, total=False):
    """An alarm."""

    step: Required[int]
    changed: dict[str, Any] | None


class OverfittingFacts(TypedDict, total=False):
    """What the guard saw, and the verdict."""

    events: Required[list[EventFacts]]
    verdict: Required[str | None]
    guard: str
    watched_steps: int


class FingerprintFacts(TypedDict, total=False):
    """What was evaluated; summaries of version 0.1.0 have none."""

    weights: Required[str]
    data: Required[str]


class PertAlignFacts(TypedDict, total=False):
    """The exponential average of PertAlign."""

    last: Required[float | None]
    min: Required[float | None]


class DataFacts(TypedDict, total=False):
    """The images of a run."""

    fingerprint: str
    classes: list[str] | None


class VersionFacts(TypedDict, total=False):
    """What a run was computed with."""

    torch: Required[str]
    machine: str  # of format 1


class MachineFacts(TypedDict):
    """Where a run was computed."""

    system: str
    cpu: str | None
    gpu: str | None
    threads: int


class Summary(TypedDict, total=False):
    """`summary.json`."""

    method: Required[str]
    dataset: Required[str]
    model: Required[str]
    seed: Required[int]
    epochs: Required[int]
    versions: Required[VersionFacts]
    threat: Required[ThreatFacts]
    accuracy: Required[dict[str, float]]
    attacks: Required[dict[str, AttackFacts]]
    co: Required[OverfittingFacts]
    variant: str | None
    parameters: int | None
    n_train: int | None
    train_seconds: Required[float]
    images_per_second: Required[float | None]
    peak_memory_mb: float | None
    machine: MachineFacts | None
    data: DataFacts | None
    fingerprint: FingerprintFacts | None
    pert_align: Required[PertAlignFacts]
    warnings: list[str]
    logs_blake2b: dict[str, str]


class TrustFacts(TypedDict, total=False):
    """One test for masked gradients."""

    outcome: Required[str]


class EvaluationRecord(TypedDict, total=False):
    """One record of `evaluation.json`."""

    threat: Required[ThreatFacts]
    accuracy: Required[dict[str, float]]
    attacks: Required[dict[str, AttackFacts]]
    predictions: Required[dict[str, str]]
    num_classes: Required[int]
    zero_gradients: Required[float]
    fingerprint: dict[str, Any] | None
    dataset: str | None
    verdict: str | None
    void: dict[str, str]
    void_versions: dict[str, dict[str, Any] | None]
    trust: list[TrustFacts]


def check_summary(summary: Any, path: Path) -> dict[str, Any]:
    """A summary that readers can rely on.

    Raises:
        RunError: It lacks something, or something has another type.
    """
    return _check(summary, Summary, path)


def check_evaluations(records: Any, path: Path) -> list[dict[str, Any]]:
    """Evaluation records that readers can rely on.

    Raises:
        RunError: One lacks something, or something has another type.
    """
    return [_check(record, EvaluationRecord, path) for record in records]


def _check(value: Any, shape: Any, path: Path) -> dict[str, Any]:
    try:
        msgspec.convert(value, shape)
        if set(value["attacks"]) != set(value["accuracy"]):
            raise ValueError("attacks and accuracy name different attacks")
    except (ValueError, RecursionError) as error:  # msgspec's error is a ValueError
        raise RunError(f"{path} is damaged ({error}); move it away to go on without it") from None
    return dict(value)
