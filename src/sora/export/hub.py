"""A folder in the style of the Hugging Face Hub: the configuration and the card beside weights and code."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from sora.attacks import create_all
from sora.evaluation import Evaluation, EvaluationOptions
from sora.evaluation.card import markdown
from sora.evaluation.records import evaluate_into
from sora.evaluation.subject import Subject

ATTACKS = "clean,fgsm,pgd10"
LOAD = "from model import load  # model.py; needs torch and safetensors\n\nmodel = load()"


def config(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config.json`: what rebuilds the model, and the classes as Hugging Face names them."""
    labels = dict(enumerate(description["classes"]))
    about = {"architectures": [description["name"]], "num_labels": len(labels), "id2label": labels}
    about |= {"label2id": {name: number for number, name in labels.items()}}
    left_out = ("classes", "format", "weights_blake2b", "weights_bytes")
    model = {key: value for key, value in description.items() if key not in left_out}
    return {**about, "pixels": "in [0, 1], normalised by the model", "sora": model}


def card(subject: Subject) -> str:
    """Return `README.md`: what the Hub shows, then the card; what `evaluation.json` lacks is measured."""
    images, chosen = subject.images()
    options = EvaluationOptions(num_classes=subject.dataset.num_classes, network=subject.network)
    threats, attacks, about = subject.threats(), create_all(ATTACKS), subject.about | {"images": chosen}
    evaluations = evaluate_into(subject.folder, subject.model, images, threats, attacks, options, about)
    facts = replace(subject.facts(evaluations[0], chosen), load=LOAD)
    head = yaml.safe_dump(_front_matter(facts.name, subject.dataset.name, evaluations[0]), sort_keys=False)
    return f"---\n{head}---\n\n{markdown(facts, evaluations)}"


def _front_matter(name: str, dataset: str, evaluation: Evaluation) -> dict[str, Any]:
    radius = f"{evaluation.threat.norm} {evaluation.threat.given}"
    metrics = []
    for attack, share in evaluation.accuracy.items():
        what = "clean accuracy" if attack == "clean" else f"accuracy under {attack}, {radius}"
        metrics.append({"type": "accuracy", "name": what, "value": share})
    data = {"name": dataset, "type": dataset, "split": "test"}
    result = {"task": {"type": "image-classification"}, "dataset": data, "metrics": metrics}
    return {
        "pipeline_tag": "image-classification",
        "tags": ["adversarial-robustness", "adversarial-training"],
        "model-index": [{"name": name, "results": [result]}],
    }
