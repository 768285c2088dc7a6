"""Fingerprints of models, examples, attacks and evaluations: equal ones mean equal results."""

import functools
import hashlib
import inspect
import json
import sys
import types
import uuid
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sora
from sora._passes import bare
from sora._task import PLAIN, Task
from sora.attacks import Attack
from sora.evaluation.examples import Examples
from sora.runs import digest_model
from sora.runs.facts import package_version
from sora.threat import Threat

CHUNK = 100  # examples in memory at a time
_COMPILING = {"_compiled_call_impl", "_is_torch_compile", "_torchdynamo_wrapper_id"}  # they change no result
_IGNORED = vars(nn.Module()).keys() | _COMPILING
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.Size, torch.device, type(None))
_BY_NAME = (type, types.BuiltinFunctionType, types.ModuleType)

Fingerprint = dict[str, Any]


def hash_inputs(model: nn.Module, examples: Examples, network: Mapping[str, Any] | None) -> dict[str, str]:
    """Hash what the predictions of a model depend on, apart from settings."""
    model = bare(model)
    known = {"weights": digest_model(model), "network": model_fingerprint(model, network)}
    return known | {"data": data_fingerprint(examples)}


def fingerprint_of(
    hashes: Mapping[str, str], threat: Threat, seed: int, batch_size: int, task: Task = PLAIN
) -> Fingerprint:
    """Return everything that the predictions under a given attack and radius depend on."""
    box = None if threat.box is None else list(threat.box)
    known = {**hashes, "sora": sora.__version__, "box": box, "seed": seed, "batch_size": batch_size}
    return known if task == PLAIN else known | {"task": task_fingerprint(task)}


def task_fingerprint(task: Task) -> str:
    """Return a fingerprint of a loss and of functions of the user's own, by their code."""
    digest = _ObjectDigest()
    digest.add(task)
    return digest.hexdigest()


def state_name(fingerprint: Fingerprint, threat: Threat) -> str:
    """Return the name under which finished units of an evaluation are stored."""
    return short_hash(json.dumps([fingerprint, threat.norm, threat.eps], sort_keys=True).encode())


def short_hash(text: bytes) -> str:
    """Return 16 hexadecimal digits."""
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def model_fingerprint(model: nn.Module, description: Mapping[str, Any] | None = None) -> str:
    """Return a fingerprint of what a model computes with its weights.

    Covers its description (name, width, options), the class, source text, attributes and hooks of every
    module, and so also a function of the user's own: two models may have the same weights and differ in
    code or in an option alone. A model with an attribute that cannot be hashed has a new one every time.
    """
    digest = _ObjectDigest()
    digest.add_text(json.dumps(description or {}, sort_keys=True, default=str))
    try:
        digest.add_model(model)
    except RecursionError:  # an attribute refers to a very long chain of objects
        digest.add_text(uuid.uuid4().hex)
    for source in sorted(digest.sources.items()):
        digest.add_text(repr(source))
    return digest.hexdigest()


def data_fingerprint(examples: Examples) -> str:
    """Return a fingerprint of all inputs and labels in their order."""
    digest = _ObjectDigest()
    for positions in torch.split(torch.arange(len(examples.labels)), CHUNK):
        x, y = examples.take(positions, torch.device("cpu"))
        digest.add_tensor("x", x)
        digest.add_tensor("y", y)
    return digest.hexdigest()


def identity_of(attack: Attack, threat: Threat) -> str:
    """Return a hash of what an attack does, since an attack of the same name may have been edited.

    Covers its settings, fields and parts, the versions of the packages it runs, and for a class defined
    outside this package the source text of its module. Its task is part of an evaluation's fingerprint.
    """
    digest = hashlib.blake2b(digest_size=8)
    kinds = [kind for kind in type(attack).__mro__ if issubclass(kind, Attack)]
    own = [kind for kind in kinds if kind.__module__.partition(".")[0] != "sora"]
    values = [getattr(attack, field.name) for field in fields(attack)]
    inside = [each for each in (*values, *attack.parts) if isinstance(each, Attack) and each is not attack]
    for value in (
        [(kind.__module__, kind.__qualname__) for kind in kinds],
        [_source_of(kind) for kind in own],
        [package_version(package) for package in attack.packages],
        attack.settings(threat),
        [value for value in values if not isinstance(value, (Attack, Task))],
        [identity_of(each, threat) for each in inside],
    ):
        _ObjectDigest(digest).add(value)
    return digest.hexdigest()


class _ObjectDigest:
    """A hash of models and their attributes; each object is added once, so that cycles end.

    What cannot be hashed adds a random token: such a model is measured again every time.
    """

    def __init__(self, digest: hashlib.blake2b | None = None) -> None:
        self._digest = digest or hashlib.blake2b(digest_size=8)
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []  # keeps ids from being given to other objects
        self.sources: dict[str, str] = {}  # the text of each module that defines a class of the models added

    def hexdigest(self) -> str:
        """Return the hash of everything added so far."""
        return self._digest.hexdigest()

    def add_text(self, text: str) -> None:
        """Add a text."""
        self._digest.update(text.encode())

    def add_tensor(self, name: str, tensor: Tensor) -> None:
        """Add a tensor's name, type, shape and values."""
        self.add_text(f"{name} {tensor.dtype} {tuple(tensor.shape)}")
        self._digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)

    def add_model(self, model: nn.Module) -> None:
        """Add the class, attributes and hooks of every module, but not the weights."""
        modules = list(model.named_modules(remove_duplicate=False))
        for _, module in modules:
            self._is_new(module)
        for name, module in modules:
            kind = type(module)
            self.add_text(f"\n{name} {self._seen[id(module)]} {_name(kind)}")
            for base in kind.__mro__:
                if base.__module__ == "__main__":  # of a script, what the model uses: the rest trains it
                    self.add(_functions(base))
                elif issubclass(base, nn.Module) and not _from_torch(base):
                    self.sources[base.__module__] = _source_of(base)
            # Wrappers such as DDP refer to process groups and the like, which change no result.
            deep = not _from_torch(kind)
            for key in sorted(vars(module).keys() - _IGNORED):
                self.add_text(f"\n{key}=")
                self.add(vars(module)[key], deep)
            for key in sorted(module._non_persistent_buffers_set):  # those not among the weights
                self.add_text(f"\n{key}=")
                self.add(module._buffers[key])
            for hooks in _HOOKS:
                for hook in vars(module).get(hooks, {}).values():
                    self.add_text(f"\n{hooks} ")
                    self.add(hook)

    def add(self, value: object, deep: bool = True) -> None:
        """Add any value; if not `deep`, only the type of an object and the code of a function count."""
        if isinstance(value, Tensor):
            self.add_tensor("", value)
        elif isinstance(value, _PLAIN):
            self.add_text(repr(value) + ",")
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self.add_text(f"{value.dtype} {value.shape}")
            self._digest.update(value.tobytes())
        elif isinstance(value, _BY_NAME):
            self.add_text(_name(value))
            owner = getattr(value, "__self__", None)  # of a built-in method such as `tensor.mul`
            self.add(None if isinstance(owner, _BY_NAME) else owner, deep)
        elif isinstance(value, (tuple, frozenset)):
            self._add_items(value, deep)
        elif not self._is_new(value):
            self.add_text(f"object {self._seen[id(value)]}")
        elif isinstance(value, (Mapping, list, set)):
            self._add_items(value, deep)
        elif isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self._add_function(value, deep)
        elif not deep:
            self.add_text(_name(type(value)))
        else:
            self._add_object(value)

    def _add_items(self, values: Any, deep: bool) -> None:
        self.add_text(f"{_name(type(values))} {len(values)}:")
        if isinstance(values, Mapping):
            values = [part for item in values.items() for part in item]
        for item in sorted(values, key=repr) if isinstance(values, (set, frozenset)) else values:
            self.add(item, deep)

    def _add_function(self, value: Any, deep: bool) -> None:
        if isinstance(value, functools.partial):
            parts = [value.func, value.args, value.keywords]
        elif isinstance(value, types.MethodType):
            parts = [value.__func__, value.__self__]
        else:
            self.add_text(f"{_name(value)} {_code(value.__code__)}")
            parts = [value.__defaults__, value.__kwdefaults__] if deep else []
            for cell in value.__closure__ or () if deep else ():
                try:
                    parts.append(cell.cell_contents)
                except ValueError:  # the variable has no value yet
                    parts.append("empty cell")
            if value.__module__ == "__main__":
                inner = [each for each in value.__code__.co_consts if isinstance(each, types.CodeType)]
                for name in (name for code in (value.__code__, *inner) for name in code.co_names):
                    used = value.__globals__.get(name)
                    if getattr(used, "__module__", "__main__") == "__main__":
                        parts.append(_functions(used) if isinstance(used, type) else used)
        for part in parts:
            self.add(part, deep)

    def _add_object(self, value: object) -> None:
        self.add_text(_name(type(value)))
        if isinstance(value, nn.Module):
            for name, tensor in sorted((*value.named_parameters(), *value.named_buffers())):
                self.add_tensor(name, tensor)
            self.add_model(value)
        elif isinstance(value, torch.Generator):
            self.add(value.get_state())
        elif hasattr(value, "__dict__"):
            self.add({str(key): vars(value)[key] for key in sorted(vars(value), key=str)})
        else:
            text = repr(value)
            self.add_text(uuid.uuid4().hex if " at 0x" in text else text)

    def _is_new(self, value: object) -> bool:
        if id(value) in self._seen:
            return False
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        return True


def _source_of(kind: type) -> str:
    """Return the text of the file that defines a class: helpers beside the class decide its results too."""
    try:
        return inspect.getsource(sys.modules[kind.__module__])
    except (KeyError, OSError, TypeError):  # defined by `exec`
        return "\n".join(f"{each.__name__} {_code(each.__code__)}" for each in _functions(kind))


def _functions(kind: type) -> list[types.FunctionType]:
    """Return the functions of a class, also those of properties, class methods and static methods."""
    found = (getattr(each, "__func__", getattr(each, "fget", each)) for each in vars(kind).values())
    return [each for each in found if isinstance(each, types.FunctionType)]


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value.__name__)} "


def _from_torch(kind: type) -> bool:
    return kind.__module__.startswith("torch.")


def _code(code: types.CodeType) -> str:
    """Return the instructions and constants of a function and of those inside it, without addresses."""
    return f"{code.co_code.hex()} {code.co_names} {[_constant(each) for each in code.co_consts]}"


def _constant(value: object) -> str:
    if isinstance(value, frozenset):  # its order is another one in every process
        return repr(sorted(map(repr, value)))
    return _code(value) if isinstance(value, types.CodeType) else repr(value)
