"""The masking tests cost at most twice a PGD-10 evaluation of the same images, counted in passes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sora import evaluate
from sora.evaluation.examples import as_examples
from sora.evaluation.trust import masking_tests
from sora.threat import Linf
from tests.evaluation.trust.frauds import QuantisedInput

torch.set_num_threads(1)


class Counting(nn.Module):
    """A linear model that counts images: a forward pass is 1, one that will be differentiated 2."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.passes = nn.Linear(75, 5), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += len(x) * (2 if x.requires_grad or torch.is_grad_enabled() else 1)
        logits: Tensor = self.layer(x.flatten(1))
        return logits


def cost(model: Counting, call: Callable[[], object]) -> int:
    before = model.passes
    call()
    return model.passes - before


@pytest.mark.parametrize("n", [128, 512])
@pytest.mark.parametrize("hidden", [False, True], ids=["open", "hidden"])
@pytest.mark.parametrize("second", [False, True], ids=["alone", "second-model"])
def test_cost_in_passes(n: int, hidden: bool, second: bool) -> None:
    counting = Counting()
    model = QuantisedInput(counting) if hidden else counting  # hidden: PGD-10 leaves every image
    x = torch.rand(n, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y = counting(x).argmax(1)
    threat, examples = Linf(0.02), as_examples((x, y))
    source = copy.deepcopy(counting) if second else None
    pgd = cost(counting, lambda: evaluate(model, (x, y), threat, ["pgd10"]))
    trust = cost(
        counting,
        lambda: masking_tests(model, examples, threat, torch.device("cpu"), batch_size=250, source=source),
    )
    trust += source.passes if source is not None else 0
    assert n * 22 <= pgd <= n * 25
    assert n * 20 <= trust <= 2 * pgd
