"""What a probe is, the registry of probes, and a model with the images it is measured on."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from sora._checks import check_inputs, check_labels, checking
from sora._passes import bare, frozen
from sora._registry import Entry, Registry
from sora._task import PLAIN
from sora.errors import UserError
from sora.evaluation.accuracy import device_of
from sora.evaluation.examples import Data, Examples, as_examples, in_precision_of
from sora.figures import Figure
from sora.threat import Threat

Result = dict[str, Any]  # what a probe measured, as plain numbers, lists and dictionaries that JSON can store

Subject = TypeVar("Subject")


class Probe(ABC, Generic[Subject]):
    """One kind of picture, and the numbers it shows.

    `Probe[ProbedModel]` measures a model and `Probe[RunFolder]` reads the logs of a run, one run at a time.
    `Probe[Setting]` compares the finished runs of one setting, `Probe[Dataset]` describes a data set. The
    options of a probe, if it has any, are the fields of a frozen dataclass.
    """

    @abstractmethod
    def measure(self, subject: Subject) -> Result:
        """Return the numbers: a function of the subject alone, which is left unchanged."""

    def figure(self, results: Mapping[str, Result]) -> Figure:
        """Return the results of one or more subjects, by their names, as one figure."""
        raise UserError(f"{type(self).__name__} draws pictures only, no figures for a page")

    def picture(self, results: Mapping[str, Result], file: Path) -> None:
        """Draw the results of one or more subjects, by their names, into one picture file."""
        from sora.figures import on_paper

        on_paper.save(self.figure(results), file)

    @abstractmethod
    def sentence(self, result: Result) -> str:
        """Return the result in one line."""


@dataclass(frozen=True)
class ProbeInfo(Entry):
    """A probe, found by its name."""

    cls: type[Probe[Any]]
    images: int = 0
    """Number of test images it is measured on by default; 0 for a probe that measures no model."""
    reads: Literal["logs", "comparison", "data"] = "logs"
    """What a probe without a model reads: the logs of runs, finished runs side by side, or data sets."""
    of: str = ""  # the probe whose results it draws in another way
    figures: tuple[int, ...] = ()  # the paper's figures of this kind

    @property
    def needs(self) -> Literal["model", "logs", "comparison", "data"]:
        """What it is made from."""
        return "model" if self.images else self.reads


ORDER = ("eps_curve", "landscape", "boundary", "theory", "attacked", "training", "traces", "comparison")
PROBES = Registry("probe", "sora.probes", ProbeInfo, ORDER)
register, names, info = PROBES.register, PROBES.names, PROBES.info


def create(name: str, **options: Any) -> Probe[Any]:
    """Return the probe of that name; keyword arguments are its options."""
    return info(name).cls(**options)


@dataclass(frozen=True)
class ProbedModel:
    """A model, the images it is measured on, and the threat."""

    model: nn.Module  # from inputs to logits; measured in evaluation mode and left as it was
    data: Data  # an `ImageSet`, a pair of tensors (inputs, labels), or an iterable of such batches
    threat: Threat
    seed: int = 0  # of random directions and starts; torch's own random state is not used
    progress: bool = False  # show a bar on a terminal
    classes: Sequence[str] = ()  # their names in figures, which show numbers without them
    positions: Sequence[int] | None = None  # of the images in the set they are from, if that is not `data`

    @property
    def bare_model(self) -> nn.Module:
        """The model without a DDP wrapper."""
        return bare(self.model)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return device_of(self.bare_model)

    def facts(self, n: int) -> Result:
        """Return what every result of a model has: the threat and the number of images."""
        return {"threat": {"norm": self.threat.norm, "eps": self.threat.eps}, "n": n}

    def examples(self) -> Examples:
        """Return the images in the model's precision; each batch that is taken from them is checked."""
        model = self.bare_model
        given = in_precision_of(model, as_examples(self.data))

        def load(at: Tensor, device: torch.device) -> Tensor:
            x = given.load(at, device)  # results of normalised images would be silently wrong
            check_inputs(x, given.labels[at].to(device), self.threat, PLAIN)
            return x

        examples = replace(given, load=load)
        first = examples.take(torch.arange(1), self.device)

        def check(logits: Tensor, _: Tensor) -> None:
            check_labels(logits, examples.labels)

        with frozen(model), torch.no_grad(), checking(model, *first, self.threat, PLAIN, check=check):
            model(first[0])
        return examples

    def position(self, number: int) -> int:
        """Return where an image of `data` is in the set it was chosen from."""
        return number if self.positions is None else self.positions[number]

    def all_images(self) -> tuple[Tensor, Tensor]:
        """Return all images and labels, on the model's device."""
        examples = self.examples()
        return examples.take(torch.arange(len(examples.labels)), self.device)
