"""What is evaluated: a model with its data, its threat, and what is known about how it was made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sora import data
from sora.data import Dataset, ImageSet
from sora.data.splits import choose
from sora.errors import UserError
from sora.evaluation.adversarial_files import save_adversarial
from sora.evaluation.card import ModelFacts, entry, markdown
from sora.evaluation.scores import Evaluation
from sora.runs import RunFolder, build_model, describe_model, load_data, load_model, load_weights
from sora.settings import Request, Settings, is_custom
from sora.threat import Threat, threat

ABOUT = ("method", "model", "seed", "weights")
_EXAMPLES = {"linf": "8/255", "l2": "0.5"}
_SIZES = ("num_classes", "in_channels", "image_size", "width", "mean", "std")
_TRAINING = ("method", "norm", "eps", "epochs", "batch_size", "optimizer", "lr", "schedule", "augment")


@dataclass(frozen=True)
class Subject:
    """A model and everything that `sora evaluate` needs to know about it."""

    model: nn.Module
    dataset: Dataset
    settings: Settings
    folder: RunFolder  # where the results go
    about: dict[str, Any]  # what every record says about the model
    network: dict[str, Any]  # what rebuilds the model, apart from its weights
    load_code: str  # Python that loads it
    summary: Mapping[str, Any] = field(default_factory=dict)
    """The run's own summary; empty for an unfinished run and for weights from elsewhere."""
    doubts: Sequence[str] = ()  # what speaks against results on this data

    def threats(self, eps: str | None = None, norms: str | None = None) -> list[Threat]:
        """Return each radius in each norm, given as text with commas; it may name its own norm (`l2:0.5`)."""
        names = [name.strip() for name in (self.settings.norm if norms is None else norms).split(",")]
        for name in names if eps is None else ():
            if name != self.settings.norm and name in _EXAMPLES:
                raise UserError(
                    f"--norms {name} requires --eps, e.g. --eps {name}:{_EXAMPLES[name]}: the default radius"
                    f" {self.settings.eps} is one in {self.settings.norm}"
                )
        threats = []
        for radius in (text.strip() for text in (self.settings.eps if eps is None else eps).split(",")):
            own, colon, size = radius.partition(":")
            threats += [threat(own, size)] if colon else [threat(name, radius) for name in names]
        return list(dict.fromkeys(threats))

    def images(self, limit: int | None = None, first: bool = False) -> tuple[ImageSet, dict[str, Any]]:
        """Return test images, and which ones they are; a limit of None means as many as in the run, 0 all."""
        count = self.settings.limit_test if limit is None else limit or None
        return select_test_images(self.dataset, count, first=first)

    def write_card(
        self,
        evaluations: Sequence[Evaluation],
        images: Mapping[str, Any],
        additional_data: bool | None = None,
    ) -> None:
        """Write the model card; the radius that the model was trained for comes first, if evaluated."""
        ordered = sorted(evaluations, key=lambda each: each.threat != self.settings.threat())
        facts = self.facts(ordered[0], images, additional_data)
        self.folder.write_card(markdown(facts, ordered), entry(facts, ordered))

    def facts(
        self, evaluation: Evaluation, images: Mapping[str, Any], additional_data: bool | None = None
    ) -> ModelFacts:
        """Return what a card says about the model; see `write_card`."""
        settings, name, training = self.settings, self.about["weights"], dict[str, Any]()
        if "method" in self.about:  # of a run
            name = f"{settings.method} {settings.model} {settings.dataset}"
            training = {key: getattr(settings, key) for key in (*_TRAINING, "guard", "weight_decay", "seed")}
            training |= settings.set
            training |= {key: self.summary.get(key) for key in ("n_train", "train_seconds")}
            training |= {key: self.about.get(key) for key in ("weights", "unfinished")}
            if training["unfinished"]:  # the settings' epochs are those of weights that do not exist yet
                name, training["epochs"] = f"{name} (unfinished run)", None
            changes = [event.get("changed") for event in self.summary.get("co", {}).get("events", [])]
            training |= {"changed by the guard": list(filter(None, changes))} if any(changes) else {}
        return ModelFacts(
            name,
            settings.model,
            self.dataset.name,
            self.load_code,
            training,
            additional_data=additional_data,
            network=self.network,
            images=images,
            fingerprint=evaluation.fingerprint,
        )

    def save_adversarial(self, path: str, evaluation: Evaluation, images: Mapping[str, Any]) -> None:
        """Write the attacked images of an evaluation that kept them."""
        positions = images["positions"]
        chosen = torch.arange(evaluation.n) if positions is None else torch.tensor(positions)
        save_adversarial(path, evaluation, chosen, self.about | {"fingerprint": evaluation.fingerprint})


def subject_of_run(
    run: str,
    *,
    model: str | None = None,
    dataset: str | None = None,
    data_dir: str | None = None,
    out: str | None = None,
) -> Subject:
    """Return the final model of a run, on the run's own data set unless another is named."""
    folder = RunFolder(run)
    settings, summary = folder.read_settings(), folder.read_summary()
    stored = folder.read_model()
    folder.check_weights(stored)
    loaded = load_model(stored, folder.weights, model)
    images = load_data(folder, settings, dataset, data_dir)
    about = {key: getattr(settings, key, stored.get(key)) for key in ABOUT} | {"dataset": images.name}
    about |= {"unfinished": note} if (note := folder.unfinished(stored)) else {}
    repeated = f', model="{settings.model}"' if is_custom(settings.model) else ""
    code = f'import sora\n\nmodel = sora.load("{folder.name}"{repeated})  # the run folder'
    place = RunFolder(out) if out else folder
    doubts, before = [], ((summary or stored).get("data") or {}).get("fingerprint")
    if images.name == settings.dataset and before not in (None, images.fingerprint):
        doubts = [f"{images.name} has changed since training: fingerprint {before}, now {images.fingerprint}"]
    return Subject(loaded, images, settings, place, about, network_facts(stored), code, summary, doubts)


def subject_of_weights(
    weights: str,
    model: str,
    dataset: str,
    width: int | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    data_dir: str | None = None,
    out: str | None = None,
) -> Subject:
    """Return a named model with weights from anywhere, on a named data set."""
    given = {"dataset": dataset, "model": model, "data_dir": data_dir, "width": width}
    given = {key: value for key, value in given.items() if value}
    settings = Request({**given, "method": "benign", "set": dict(options or {})}).resolve().settings
    images, path = data.load(dataset, data_dir), Path(weights)
    description = describe_model(settings, images)
    built = build_model(description)
    load_weights(built, path)
    arguments = {key: description[key] for key in _SIZES} | description["options"]
    text = ", ".join(f"{key}={value!r}" for key, value in arguments.items() if value is not None)
    code = (
        "import sora\nfrom sora.runs import load_weights\n\n"
        f'model = sora.models.create("{model}", {text})\n'
        f'load_weights(model, "{path.name}")\nmodel.eval()'
    )
    about = {"model": model, "weights": path.name, "dataset": images.name}
    # The whole name: net.pt and net.safetensors are different models.
    folder = RunFolder(out or path.with_name(f"{path.name}-evaluation"))
    return Subject(built, images, settings, folder, about, network_facts(description), code)


def network_facts(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a model's description that decides what it computes."""
    return {key: description.get(key) for key in ("name", *_SIZES, "options")}


def select_test_images(
    dataset: Dataset, limit: int | None, *, first: bool = False
) -> tuple[ImageSet, dict[str, Any]]:
    """Return the test images of a data set, all of them or `limit`, and which ones they are.

    `first` takes the first ones, as leaderboards do, instead of a class-balanced choice.
    """
    total = len(dataset.test)
    facts = {"split": "test", "of": total, "chosen": "all", "positions": None}
    if limit is None:
        return dataset.test, facts
    if not 0 < limit <= total:
        raise UserError(f"--limit: {dataset.name}'s test set has {total} images, {limit} were requested")
    positions = torch.arange(limit) if first else choose(dataset.test.labels, limit)
    facts |= {"chosen": "first" if first else "class-balanced", "positions": positions.tolist()}
    return dataset.test.subset(positions), facts
