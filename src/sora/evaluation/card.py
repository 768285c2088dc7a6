"""A model card: what was measured, how the model was made, how to use it. For people and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sora._files import write_text
from sora.evaluation._doubts import doubts
from sora.evaluation._result import Evaluation, verdict

PROTOCOL = (
    "Model in evaluation mode, pixels in [0, 1], perturbations in pixel units; 95 % intervals over the n"
    " images by Wilson's formula. An image counts as robust if no restart of the attack changes its"
    " prediction, in the worst case if no attack does."
)


@dataclass(frozen=True)
class Subject:
    """What a card is about."""

    name: str
    architecture: str
    dataset: str
    load: str
    """Python code that loads the model."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """How it was trained, as far as that is known."""


def write_card(folder: Path, subject: Subject, found: Sequence[Evaluation]) -> None:
    """Write `model_card.md` and `model_card.json`; the first evaluation is the headline."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "model_card.md", markdown(subject, found))
    write_text(folder / "model_card.json", json.dumps(entry(subject, found), indent=2) + "\n")


def entry(subject: Subject, found: Sequence[Evaluation]) -> dict[str, Any]:
    """The card for programs: RobustBench's keys, percentages as text, then ours in full.

    `link`, `authors`, `venue` and `reported` are empty as in RobustBench's own generated entries: they are
    about a publication. `autoattack_acc` is empty unless all of AutoAttack was run.
    """
    head = found[0]
    return {
        "link": "",
        "name": subject.name,
        "authors": "",
        "additional_data": False,
        "number_forward_passes": 1,
        "dataset": subject.dataset,
        "venue": "",
        "architecture": subject.architecture,
        "eps": head.threat.given,
        "threat_model": {"linf": "Linf", "l2": "L2"}[head.threat.norm],
        "clean_acc": _percent(head.accuracy.get("clean")),
        "reported": "",
        "autoattack_acc": _percent(head.accuracy.get("aa")),
        "unreliable": bool(doubts(head)),
        "evaluations": [evaluation.record() | {"warnings": doubts(evaluation)} for evaluation in found],
        "training": dict(subject.training),
        "load": subject.load,
    }


def markdown(subject: Subject, found: Sequence[Evaluation]) -> str:
    """The card for people."""
    rows = [
        "| threat | attack | accuracy | 95 % interval | n |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for evaluation in found:
        rows += _rows(evaluation)
    notes = [f"- **Warning** ({_threat(each)}): {text}." for each in found for text in doubts(each)]
    if {"fgsm", "pgd10"} <= found[0].accuracy.keys():
        notes.insert(0, f"- Verdict on catastrophic overfitting: **{verdict(found[0].accuracy)}**.")
    if not any("aa" in evaluation.accuracy for evaluation in found):
        notes.append("- AutoAttack was not run: robust accuracy is an upper bound.")
    training = [f"| {key} | `{value}` |" for key, value in subject.training.items() if value is not None]
    trained = ["| setting | value |", "| --- | --- |", *training] if training else ["Not known."]
    parts = [
        f"# {subject.name}",
        f"`{subject.architecture}` for `{subject.dataset}`.",
        "## Robustness",
        "\n".join(rows),
        "\n".join(notes),
        PROTOCOL,
        "## How it was trained",
        "\n".join(trained),
        "## How to load it",
        f"```python\n{subject.load}\n```",
        "It takes images in [0, 1], shape (batch, channels, height, width), and returns logits:"
        " normalisation is inside.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _rows(found: Evaluation) -> list[str]:
    shares = {name: {"accuracy": found.accuracy[name], **each} for name, each in found.attacks.items()}
    rows = []
    for name, each in {**shares, "**worst case**": found.worst_case}.items():
        accuracy, low, high = (f"{100 * each[key]:.2f}" for key in ("accuracy", "low", "high"))
        rows.append(f"| {_threat(found)} | {name} | {accuracy} % | {low} - {high} | {each['n']} |")
    return rows


def _threat(found: Evaluation) -> str:
    return f"{found.threat.norm} {found.threat.given}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"
