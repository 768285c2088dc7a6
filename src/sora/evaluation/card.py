"""A model card, as text and as JSON: what was measured, how the model was trained, how to load it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sora.attacks.autoattack import REDUCED, VERSIONS, is_autoattack
from sora.evaluation.records import full_record
from sora.evaluation.scores import Evaluation
from sora.settings import is_custom

PROTOCOL = (
    "Model in evaluation mode, pixels in [0, 1], perturbations in pixel units; 95 % intervals over the n"
    " images by Wilson's formula. An image counts as robust if no restart of the attack changes its"
    " prediction, in the worst case if no attack does."
)
_NUMBERS = ("accuracy", "95 % interval", "n", "number", "limit")  # columns that are aligned to the right
_MINOR = ("commit", "numpy", "safetensors", "python", "attack")  # left to evaluation.json


@dataclass(frozen=True)
class ModelFacts:
    """What a card says about a model apart from its accuracy."""

    name: str
    architecture: str
    dataset: str
    load: str  # Python code that loads the model
    training: Mapping[str, Any] = field(default_factory=dict)  # as far as it is known
    additional_data: bool | None = None  # beyond its own data set; None if nobody has stated it
    network: Mapping[str, Any] = field(default_factory=dict)  # name, width and options
    images: Mapping[str, Any] = field(default_factory=dict)  # which test images were used
    fingerprint: Mapping[str, Any] = field(default_factory=dict)  # hashes, seed and batch size of attacks


def entry(facts: ModelFacts, evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Return the card as JSON: RobustBench's keys with percentages as text, then our own numbers in full.

    The first evaluation gives the percentages. `link`, `authors`, `venue` and `reported`, which describe a
    publication, are empty as in RobustBench's generated entries; so is `autoattack_acc` unless all of it ran.
    """
    head = evaluations[0]
    percent = {name: f"{100 * share:.2f}" for name, share in head.accuracy.items()}
    return {
        "link": "",
        "name": facts.name,
        "authors": "",
        "additional_data": facts.additional_data,
        "number_forward_passes": 1,
        "dataset": facts.dataset,
        "venue": "",
        "architecture": facts.architecture,
        "eps": head.threat.given,
        "threat_model": {"linf": "Linf", "l2": "L2"}[head.threat.norm],
        "clean_acc": percent.get("clean", ""),
        "reported": "",
        "autoattack_acc": percent.get("aa", ""),
        "unreliable": bool(head.warnings or head.failed_tests),
        "evaluations": [
            {key: record[key] for key in (*each.record(), "warnings", "trust")}
            for each, record in zip(evaluations, map(full_record, evaluations), strict=True)
        ],
        "network": dict(facts.network),
        "images": dict(facts.images),
        "fingerprint": dict(facts.fingerprint),
        "training": dict(facts.training),
        "load": facts.load,
    }


def markdown(facts: ModelFacts, evaluations: Sequence[Evaluation]) -> str:
    """Return the card as Markdown."""
    verdict = evaluations[0].verdict
    notes = [f"- Verdict: **{verdict}**."] if verdict else []
    for each in evaluations:
        notes += [f"- **Warning** ({_threat(each)}): {text}." for text in each.warnings]
    about_autoattack = {_threat(each): _autoattack_note(each) for each in evaluations}
    if len(set(about_autoattack.values())) == 1:  # once, if it is the same under all threats
        about_autoattack = {"": next(iter(about_autoattack.values()))}
    notes += [
        f"- {threat}{': ' if threat else ''}{note}" for threat, note in about_autoattack.items() if note
    ]
    training = [[key, f"`{value}`"] for key, value in facts.training.items() if value is not None]
    columns = ("threat", "attack", "accuracy", "95 % interval", "n")
    parts = [
        f"# {facts.name}",
        f"`{facts.architecture}` for `{facts.dataset}`.",
        "## Robustness",
        _table(columns, [row for each in evaluations for row in _rows(each)]),
        "\n".join(notes),
        PROTOCOL,
        "\n\n".join(_masking_tests(each) for each in evaluations if each.trust),
        "\n".join(_reproduction(facts, evaluations[0])),
        "## How it was trained",
        _table(("setting", "value"), training) if training else "Unknown.",
        "## How to load it",
        f"```python\n{facts.load}\n```",
        _usage(facts.architecture),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---:" if column in _NUMBERS else "---" for column in columns], *rows]
    cells = [[" ".join(str(cell).split()).replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _usage(architecture: str) -> str:
    """Return what a user of the model must know about its input, and about the code that builds it."""
    text = "The model takes images in [0, 1] of shape (batch, channels, height, width) and returns logits"
    if not is_custom(architecture):
        return f"{text}; normalisation is its first layer."
    module = architecture.partition(":")[0]
    return (
        f"{text}. Its network is custom code, not part of this package, and contains any normalisation"
        f" itself; the Python module `{module}` must be importable where the model is loaded."
    )


def _masking_tests(evaluation: Evaluation) -> str:
    """Return the masking tests under one threat, and what to do about those that failed."""
    columns = ("test", "outcome", "number", "limit", "n", "measured")
    rows = []
    for each in evaluation.trust:
        numbers = ["" if number is None else f"{number:.3g}" for number in (each.value, each.threshold)]
        outcome = "**failed**" if each.outcome == "failed" else each.outcome
        rows.append([each.test, outcome, *numbers, each.n or "", each.text])
    failed = [f"- {each.test}: {each.advice}." for each in evaluation.failed_tests]
    parts = [f"Masking tests ({_threat(evaluation)}):", _table(columns, rows), "\n".join(failed)]
    return "\n\n".join(part for part in parts if part)


def _autoattack_note(evaluation: Evaluation) -> str:
    """Return what a reader must know about AutoAttack under a threat; empty if it is complete."""
    versions = [name for name in evaluation.accuracy if is_autoattack(name)]
    if not versions:
        return "AutoAttack was not run: robust accuracy is an upper bound."
    if any(name in VERSIONS for name in versions):  # a complete one
        return ""
    name = versions[0]
    present = evaluation.settings[name].get("parts", [])
    missing = [part for part in VERSIONS[name.removesuffix(REDUCED)] if part not in present]
    which = f"{' and '.join(missing)}, which {'are' if len(missing) > 1 else 'is'} undefined for few classes"
    return f"`{name}` is AutoAttack without {which}; it is not comparable with the full attack."


def _reproduction(facts: ModelFacts, evaluation: Evaluation) -> Iterator[str]:
    """Yield what one needs to repeat the numbers: images, seeds, versions, hashes."""
    if facts.images:
        yield f"- Images: {facts.images['chosen']}, n = {evaluation.n} of {facts.images['of']}."
    if facts.network:
        network = dict(facts.network)
        name, options = network.pop("name", facts.architecture), network.pop("options", None)
        settings = {key: value for key, value in (network | (options or {})).items() if value is not None}
        yield f"- Network: {', '.join([f'`{name}`', *(f'{k} = {v}' for k, v in settings.items())])}."
    if facts.fingerprint:
        hashes = ", ".join(f"{key} `{facts.fingerprint[key]}`" for key in ("weights", "network", "data"))
        yield f"- Hashes: {hashes}."
    for name, attack in evaluation.attacks.items():
        code = evaluation.versions.get(name) or {}
        packages = ", ".join(f"{key} {code[key]}" for key in code if key not in _MINOR)
        seeds = f"seed {attack.get('seed')}, batches of {attack.get('batch_size')}"
        yield f"- {name}: {seeds}{f'; {packages}' if packages else ''}."


def _rows(evaluation: Evaluation) -> Iterator[list[object]]:
    accuracy = evaluation.accuracy
    attacks = {name: {"accuracy": accuracy[name], **own} for name, own in evaluation.attacks.items()}
    for name, each in {**attacks, "**worst case**": evaluation.worst_case}.items():
        share, low, high = (f"{100 * each[key]:.2f}" for key in ("accuracy", "low", "high"))
        yield [_threat(evaluation), name, f"{share} %", f"{low} - {high}", each["n"]]


def _threat(evaluation: Evaluation) -> str:
    return f"{evaluation.threat.norm} {evaluation.threat.given}"
