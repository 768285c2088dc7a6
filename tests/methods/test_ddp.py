"""Inside a DDP wrapper every method leaves the gradients it leaves without one."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from .test_table import ROWS, batch_for, from_row, steps
from .toys import LINF


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store: Path = tmp_path_factory.mktemp("store") / "file"
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.filterwarnings("ignore:.*broadcast_buffers:FutureWarning")
@pytest.mark.parametrize("label", ROWS)
def test_wrapped_and_bare_gradients_are_equal(label: str) -> None:
    model, x, y = batch_for("batchnorm")
    results = []
    for wrapped in (False, True):
        trained = copy.deepcopy(model)
        net = DistributedDataParallel(trained, broadcast_buffers=False) if wrapped else trained
        torch.manual_seed(0)
        list(steps(from_row(label, LINF, x, model), net, x, y))
        results.append([p.grad for p in trained.parameters()])
    for bare, wrapped_gradient in zip(*results, strict=True):
        torch.testing.assert_close(wrapped_gradient, bare)
