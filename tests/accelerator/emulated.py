"""A device beside the CPU on a machine that has none, registered with torch under the name `emulated`.

Its tensors compute on the CPU but report another device, go through autograd, and do not mix with CPU
tensors except where a GPU allows it: numbers without a dimension, and positions to index with. It has no
generator of its own. Register it in a process of its own: torch cannot forget a device.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map_only

NAME = "emulated"
INDEXED = (
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
)  # also by CPU tensors


class OnDevice(Tensor):
    """A tensor of the emulated device; `host` has its numbers."""

    host: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, host: Tensor) -> "OnDevice":
        shape = {"strides": host.stride(), "storage_offset": host.storage_offset()}
        device = torch.device(NAME, 0)
        tensor = Tensor._make_wrapper_subclass(cls, host.shape, **shape, dtype=host.dtype, device=device)
        tensor.host = host
        return tensor  # type: ignore[no-any-return]

    def tolist(self) -> Any:
        """Return the numbers, which torch refuses for subclasses."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(operation, *args, **(kwargs or {}))


def compute(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute on the host; results are on the device unless the operation copies to the CPU."""
    name, goal = operation._schema.name, kwargs.get("device")
    copies, to_cpu = (
        name in ("aten::_to_copy", "aten::copy_"),
        goal is not None and torch.device(goal).type == "cpu",
    )
    if name == "aten::copy_":
        to_cpu = not isinstance(args[0], OnDevice)
    inputs = (args, kwargs)
    if not copies:
        checked = (args[:1], args[2:], kwargs) if name in INDEXED else inputs
        for leaf in tree_leaves(checked):
            if isinstance(leaf, Tensor) and not isinstance(leaf, OnDevice) and leaf.dim():
                raise RuntimeError(
                    f"{name}: a CPU tensor of shape {tuple(leaf.shape)} beside tensors of {NAME}"
                )
    given = {id(leaf.host): leaf for leaf in tree_leaves(inputs) if isinstance(leaf, OnDevice)}
    args, kwargs = tree_map_only(OnDevice, lambda tensor: tensor.host, inputs)
    if "device" in kwargs:
        kwargs["device"] = torch.device("cpu")
    result = operation(*args, **kwargs)
    if to_cpu:
        return result
    kept = lambda tensor: given[id(tensor)] if id(tensor) in given else OnDevice(tensor)  # noqa: E731
    return tree_map_only(Tensor, kept, result)


def register() -> None:
    """Make the device known to torch, once per process."""

    class Module(backend_registration._DummyBackendModule):  # older versions of torch do not have it
        """What torch calls a device module, with the functions that every accelerator has."""

        def synchronize(self) -> None:
            """Nothing to wait for: everything is computed at once."""

    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    library = torch.library.Library("_", "IMPL")
    library.fallback(compute, "PrivateUse1")
    globals()["_kept"] = library  # it is registered as long as the object lives
    torch.__future__.set_overwrite_module_params_on_conversion(
        True
    )  # `p.data = ...` would not replace `host`
    create = torch.tensor  # which fails for a device that is written in Python

    def tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
        made = create(data, **options)
        return made if device is None else made.to(device)

    torch.tensor = tensor
