"""The examples a model is evaluated on, whatever form the data has."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sora._checks import has_integers
from sora.data import ExampleSet, ImageSet
from sora.data.inputs import from_items
from sora.errors import UserError

Data = ImageSet | ExampleSet | tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]]
Load = Callable[[Tensor, torch.device], Tensor]  # inputs at some positions


@dataclass(frozen=True)
class Examples:
    """Labels, and inputs that are loaded one batch at a time.

    Inputs are always contiguous: noise is drawn in memory order, and the same images must get the same noise
    in whatever form they were given.
    """

    load: Load
    labels: Tensor
    dtype: torch.dtype | None = None  # type of the inputs; None: as loaded

    def take(self, positions: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return inputs and labels at these positions."""
        x = self.load(positions, device).contiguous()
        return x.to(self.dtype or x.dtype), self.labels[positions].to(device)


def in_precision_of(model: nn.Module, examples: Examples) -> Examples:
    """Return the examples in the type of the model's parameters, if that is at least float32.

    Integer inputs stay what they are, so that they are refused with a message of their own.
    """
    dtype = next((each.dtype for each in model.parameters() if each.is_floating_point()), None)
    x, _ = examples.take(torch.arange(1), torch.device("cpu"))
    precise = dtype in (torch.float32, torch.float64) and x.is_floating_point()
    return replace(examples, dtype=dtype) if precise else examples


def as_examples(data: Data) -> Examples:
    """Return any accepted data as examples.

    An iterable of batches, a DataLoader for instance, is read once into memory: it may be shuffled, and
    every attack must get the same examples in the same order.
    """
    if isinstance(data, ImageSet):
        examples = Examples(lambda at, device: data.gather(at).to(device).float().div_(255), data.labels)
    elif isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        examples = _from_tensors(*data)
    elif isinstance(data, ExampleSet):
        examples = _from_tensors(*data.take(torch.arange(len(data))))
    elif isinstance(data, torch.utils.data.Dataset) and hasattr(data, "__len__"):
        return as_examples(from_items(data, torch.get_default_dtype()))
    else:
        try:
            batches = [(batch[0].cpu(), batch[1].cpu()) for batch in data]
        except (TypeError, AttributeError, LookupError):
            named = f"load({data!r})" if isinstance(data, str) else 'load("digits")'
            raise UserError(
                f"data is {type(data).__name__}; expected an ImageSet such as sora.data.{named}.test, a pair"
                " of tensors (inputs, labels), or batches of such pairs; an array becomes a tensor by"
                " torch.tensor(array.copy())"
            ) from None
        if not batches:
            raise UserError("there is nothing to evaluate: the data has no batch")
        try:
            examples = _from_tensors(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
        except RuntimeError as error:
            raise UserError(f"the batches do not fit together: {error}") from None
    if len(examples.labels) == 0:
        raise UserError("there is nothing to evaluate: the data has no example")
    return examples


def _from_tensors(inputs: Tensor, labels: Tensor) -> Examples:
    if inputs.dim() == 0 or labels.dim() == 0 or inputs.is_meta or labels.is_meta:
        raise UserError(
            f"inputs {tuple(inputs.shape)} and labels {tuple(labels.shape)} on {inputs.device};"
            " expected (N, ...) and (N,), or (N, ...) for other targets, with values"
        )
    if len(inputs) != len(labels):
        raise UserError(f"{len(inputs)} inputs come with {len(labels)} labels; expected one label each")
    labels = labels.cpu().long() if has_integers(labels) else labels.cpu()  # refused later
    return Examples(lambda at, device: inputs[at.to(inputs.device)].to(device), labels)
