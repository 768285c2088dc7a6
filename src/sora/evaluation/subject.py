"""What is evaluated: a model with its data, its threat, and what is known about how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import nn

import sora
from sora import data
from sora.data import Dataset
from sora.evaluation.card import ModelFacts
from sora.runs import RunFolder, build_network, describe_network, load, load_weights
from sora.settings import Request, Settings, data_dir_of_run
from sora.threat import Threat, threat

_TRAINING = ("method", "norm", "eps", "epochs", "batch_size", "optimizer", "lr", "schedule", "augment")


@dataclass(frozen=True)
class Subject:
    """A model and everything that `sora evaluate` needs to know about it."""

    model: nn.Module
    dataset: Dataset
    settings: Settings
    folder: RunFolder
    """Where the results go."""
    about: dict[str, Any]
    """What every record says about the model."""
    load_code: str
    """Python that loads it."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """The run's own summary; empty for weights from elsewhere."""

    def threats(self, eps: str | None = None, norms: str | None = None) -> list[Threat]:
        """Each radius in each norm, both lists as text with commas; a radius may name its own (`l2:0.5`)."""
        names = [name.strip() for name in (norms or self.settings.norm).split(",")]
        threats = []
        for radius in (text.strip() for text in (eps or self.settings.eps).split(",")):
            own, colon, size = radius.partition(":")
            threats += [threat(own, size)] if colon else [threat(name, radius) for name in names]
        return list(dict.fromkeys(threats))

    def facts(self) -> ModelFacts:
        """What the model card says about it."""
        settings = self.settings
        if not self.summary:
            return ModelFacts(self.folder.name, settings.model, self.dataset.name, self.load_code)
        training = {key: getattr(settings, key) for key in (*_TRAINING, "weight_decay", "seed")}
        training |= settings.set | {
            key: self.summary.get(key) for key in ("n_train", "train_seconds", "weights")
        }
        name = f"{settings.method} {settings.model} {settings.dataset}"
        return ModelFacts(name, settings.model, self.dataset.name, self.load_code, training)


def subject_of_run(
    run: str,
    *,
    model: str | None = None,
    dataset: str | None = None,
    data_dir: str | None = None,
    out: str | None = None,
) -> Subject:
    """The final model of a run, on the run's own data set unless another is named."""
    folder = RunFolder(run)
    settings, summary = folder.read_settings(), folder.read_summary()
    network = load(folder, model=model)
    name = dataset or settings.dataset
    images = data.load(name, data_dir_of_run(name, settings.data_dir, data_dir))
    about = {key: summary.get(key) for key in ("method", "model", "seed", "weights")} | _circumstances(images)
    code = f'import sora\n\nmodel = sora.load("{folder.name}")  # the run folder'
    return Subject(network, images, settings, RunFolder(out) if out else folder, about, code, summary)


def subject_of_weights(
    weights: str,
    *,
    model: str,
    dataset: str,
    width: int | None = None,
    options: Mapping[str, Any] | None = None,
    data_dir: str | None = None,
    out: str | None = None,
) -> Subject:
    """Weights of a named network from anywhere, on a named data set."""
    given: dict[str, Any] = {
        "dataset": dataset,
        "model": model,
        "method": "benign",
        "set": dict(options or {}),
    }
    given |= {"data_dir": data_dir} if data_dir else {}
    settings = Request(given | ({"width": width} if width else {})).resolve().settings
    images, path = data.load(dataset, data_dir), Path(weights)
    description = describe_network(settings, images)
    network = build_network(description)
    load_weights(network, path)
    sizes = ("num_classes", "in_channels", "image_size", "width", "mean", "std")
    arguments = {key: description[key] for key in sizes} | description["options"]
    text = ", ".join(f"{key}={value!r}" for key, value in arguments.items() if value is not None)
    code = (
        "import safetensors.torch\nimport sora\n\n"
        f'model = sora.models.create("{model}", {text})\n'
        f'model.load_state_dict(safetensors.torch.load_file("{path.name}"))\nmodel.eval()'
    )
    about = {"model": model, "weights": path.name} | _circumstances(images)
    folder = RunFolder(out or path.with_name(f"{path.stem}-evaluation"))
    return Subject(network, images, settings, folder, about, code)


def _circumstances(dataset: Dataset) -> dict[str, Any]:
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "pyautoattack")}
    return {"dataset": dataset.name, "versions": {"sora": sora.__version__, **versions}}
