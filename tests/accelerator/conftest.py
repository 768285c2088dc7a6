"""Tests of an accelerator: `pytest tests/accelerator --device emulated`, or cuda, mps, xpu."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sora._devices import pick_device
from sora.errors import UserError
from tests.accelerator import emulated

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero")


def pytest_configure(config: pytest.Config) -> None:
    """Register the emulated device before a test touches torch; another one must be here."""
    name = config.getoption("--device")
    if name == emulated.NAME:
        emulated.register()
    elif name is not None:
        try:
            pick_device(name)
        except UserError as error:
            raise pytest.UsageError(str(error)) from None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave these tests out without `--device`."""
    return True if config.getoption("--device") is None else None


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> torch.device:
    return torch.device(pytestconfig.getoption("--device"), 0)


class HostCopies(TorchDispatchMode):
    """Counts what makes the host wait for a device: values and tensors brought over, sizes only it knows."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.uploads = 0
        """Copies in the other direction."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation.overloadpacket.__name__
        result = operation(*args, **(kwargs or {}))
        source = args[1] if name == "copy_" else args[0] if args else None
        if name in ("_to_copy", "copy_") and isinstance(source, Tensor):
            self.count += _away(source) and not _away(result)
            self.uploads += _away(result) and not _away(source)
        elif any(_away(leaf) for leaf in tree_leaves(args)):
            masks = [i for i in tree_leaves(args[1:]) if isinstance(i, Tensor) and i.dtype == torch.bool]
            self.count += name in WAITING or (name in ("index", "index_put", "index_put_") and bool(masks))
        return result


def _away(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and leaf.device.type != "cpu"


@pytest.fixture
def copies() -> Any:
    """A block that counts host copies."""

    @contextmanager
    def counting() -> Iterator[HostCopies]:
        with HostCopies() as mode:
            yield mode

    return counting
