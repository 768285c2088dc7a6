"""Hashes of what a network consists of apart from its weights: options, functions, hidden modules."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import types
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_COMPILING = {"_compiled_call_impl", "_is_torch_compile", "_torchdynamo_wrapper_id"}  # they change no result
_IGNORED = vars(nn.Module()).keys() | _COMPILING
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.Size, torch.device, type(None))
_BY_NAME = (type, types.BuiltinFunctionType, types.ModuleType)


def add_tensor(digest: hashlib.blake2b, name: str, tensor: Tensor) -> None:
    """Add a tensor's name, type, shape and values."""
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())


def source_of(kind: type) -> str:
    """The text of the file that defines a class: helpers beside the class decide its results as well."""
    try:
        return inspect.getsource(sys.modules[kind.__module__])
    except (KeyError, OSError, TypeError):  # defined in a notebook or at a prompt
        functions = {name: getattr(each, "__code__", None) for name, each in vars(kind).items()}
        return "\n".join(f"{name} {_code(code)}" for name, code in functions.items() if code is not None)


class NetworkDigest:
    """Adds networks and their attributes to a hash; each object once, so that cycles end.

    What cannot be hashed adds a random token: such a network is measured again every time.
    """

    def __init__(self, digest: hashlib.blake2b) -> None:
        self._digest = digest
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []  # keeps ids from being given to other objects
        self._sources: dict[str, str] = {}

    def add_network(self, model: nn.Module) -> None:
        """Add the class, attributes and hooks of every module, but not the weights."""
        modules = list(model.named_modules(remove_duplicate=False))
        for _, module in modules:
            self._is_new(module)
        for name, module in modules:
            kind = type(module)
            self._text(f"\n{name} {self._seen[id(module)]} {_name(kind)}")
            for base in kind.__mro__:
                if issubclass(base, nn.Module) and not _from_torch(base):
                    self._sources[base.__module__] = source_of(base)
            # Wrappers such as DDP refer to process groups and the like, which change no result.
            deep = not _from_torch(kind)
            for key in sorted(vars(module).keys() - _IGNORED):
                self._text(f"\n{key}=")
                self.add(vars(module)[key], deep)
            for key in sorted(module._non_persistent_buffers_set):  # those not among the weights
                self._text(f"\n{key}=")
                self.add(module._buffers[key])
            for hooks in _HOOKS:
                for hook in vars(module).get(hooks, {}).values():
                    self._text(f"\n{hooks} ")
                    self.add(hook)

    def add_sources(self) -> None:
        """Add the source text of all classes of modules added so far."""
        for source in sorted(self._sources.items()):
            self._text(repr(source))

    def add(self, value: object, deep: bool = True) -> None:
        """Add a value.

        Args:
            value: Anything.
            deep: Whether objects count with their attributes and functions with their variables; otherwise
                only their type or code counts.
        """
        if isinstance(value, Tensor):
            add_tensor(self._digest, "", value)
        elif isinstance(value, _PLAIN):
            self._text(repr(value) + ",")
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self._text(f"{value.dtype} {value.shape}")
            self._digest.update(value.tobytes())
        elif isinstance(value, _BY_NAME):
            self._text(_name(value))
            owner = getattr(value, "__self__", None)  # of a built-in method such as `tensor.mul`
            self.add(None if isinstance(owner, _BY_NAME) else owner, deep)
        elif isinstance(value, (tuple, frozenset)):
            self._items(value, deep)
        elif not self._is_new(value):
            self._text(f"object {self._seen[id(value)]}")
        elif isinstance(value, (Mapping, list, set)):
            self._items(value, deep)
        elif isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self._function(value, deep)
        elif not deep:
            self._text(_name(type(value)))
        else:
            self._object(value)

    def _items(self, values: Any, deep: bool) -> None:
        self._text(f"{_name(type(values))} {len(values)}:")
        if isinstance(values, Mapping):
            values = [part for item in values.items() for part in item]
        for item in sorted(values, key=repr) if isinstance(values, (set, frozenset)) else values:
            self.add(item, deep)

    def _function(self, value: Any, deep: bool) -> None:
        if isinstance(value, functools.partial):
            parts = [value.func, value.args, value.keywords]
        elif isinstance(value, types.MethodType):
            parts = [value.__func__, value.__self__]
        else:
            self._text(f"{_name(value)} {_code(value.__code__)}")
            parts = [value.__defaults__, value.__kwdefaults__] if deep else []
            parts += [_content(cell) for cell in value.__closure__ or () if deep]
        for part in parts:
            self.add(part, deep)

    def _object(self, value: object) -> None:
        self._text(_name(type(value)))
        if isinstance(value, nn.Module):
            for name, tensor in sorted((*value.named_parameters(), *value.named_buffers())):
                add_tensor(self._digest, name, tensor)
            self.add_network(value)
        elif isinstance(value, torch.Generator):
            self.add(value.get_state())
        elif hasattr(value, "__dict__"):
            self.add({str(key): vars(value)[key] for key in sorted(vars(value), key=str)})
        else:
            text = repr(value)
            self._text(uuid.uuid4().hex if " at 0x" in text else text)

    def _is_new(self, value: object) -> bool:
        if id(value) in self._seen:
            return False
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        return True

    def _text(self, text: str) -> None:
        self._digest.update(text.encode())


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value.__name__)} "


def _from_torch(kind: type) -> bool:
    return kind.__module__.startswith("torch.")


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return "empty cell"


def _code(code: types.CodeType) -> str:
    """The instructions and constants of a function and of those inside it, without memory addresses."""
    return f"{code.co_code.hex()} {code.co_names} {[_constant(each) for each in code.co_consts]}"


def _constant(value: object) -> str:
    if isinstance(value, frozenset):  # its order is another one in every process
        return repr(sorted(map(repr, value)))
    return _code(value) if isinstance(value, types.CodeType) else repr(value)
