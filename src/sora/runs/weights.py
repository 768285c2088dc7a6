"""Weights in files: checksums, safetensors files that carry one, and state dicts that others wrote.

A checksum detects damage; it is no protection against forgery.
"""

import hashlib
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple
from zipfile import ZipFile, is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from sora._files import open_regular, replace_file
from sora.errors import RunError, UserError

PREFIXES = ("module.", "model.", "_orig_mod.")  # of DataParallel, of training frameworks, of torch.compile
_COMPILED = "_orig_mod"  # where torch.compile keeps the module it wraps
_CHUNK = 1 << 20  # bytes
_SETTLED = 1_000_000_000  # nanoseconds after which another change gives a file another time stamp
_KEY = "sora"  # in the header of a file; one key only: safetensors writes several in an arbitrary order
_MARK = "blake2b:"
_known_files: dict[Path, tuple[tuple[int, ...], str]] = {}  # what `stat` says, and the checksum


def new_digest() -> hashlib.blake2b:
    """Return an empty BLAKE2b checksum; `b2sum -l 256 FILE` prints the same for a file."""
    return hashlib.blake2b(digest_size=32)


def digest_file(path: Path) -> str:
    """Return the checksum of a file, which is read only once per process unless it changes."""
    info = path.stat()
    state = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    known, digest = _known_files.get(path, ((), ""))
    if known != state:
        digest = digest_start(path, info.st_size).hexdigest()
        if time.time_ns() - max(info.st_mtime_ns, info.st_ctime_ns) > _SETTLED:
            _known_files[path] = state, digest
    return digest


def is_whole(path: Path) -> bool:
    """Return whether a safetensors file is as long as its header says, without reading the rest."""
    open_regular(path).close()  # raises for a FIFO, which safetensors would wait for
    try:
        with safe_open(path, framework="pt"):
            return True
    except (SafetensorError, OSError, ValueError, MemoryError):
        return False


def digest_start(path: Path, length: int) -> hashlib.blake2b:
    """Return the checksum of the first `length` bytes of a file, to which more bytes can be added."""
    digest = new_digest()
    with open_regular(path) as file:
        while length > 0 and (chunk := file.read(min(length, _CHUNK))):
            digest.update(chunk)
            length -= len(chunk)
    return digest


def digest_model(model: nn.Module) -> str:
    """Return the fingerprint of a model's parameters and buffers, also of a wrapped or compiled one."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(plain_state(model).items()):
        if isinstance(tensor, Tensor):  # a module may store other objects in its state
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def digest_tensors(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return the checksum of named tensors, in any order, and of a text that belongs to them."""
    digest = new_digest()
    digest.update(text.encode())
    for name in sorted(tensors):
        digest.update(f"\n{name} {tensors[name].dtype} {tuple(tensors[name].shape)}\n".encode())
        digest.update(_bytes_of(tensors[name]))
    return digest.hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file under a temporary name, then rename it."""
    contiguous, places = dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        kept = tensor.detach().cpu().contiguous()
        place = kept.untyped_storage().data_ptr()
        # The format has no shared memory: a tensor with two names is written twice.
        contiguous[name] = kept.clone() if place in places else kept
        places.add(place)
    try:
        replace_file(path, lambda temporary: save_file(contiguous, temporary, dict(metadata)))
    except SafetensorError as error:  # a full disk, for example
        raise RunError(f"cannot write {path}: {error}") from None


class TensorFile(NamedTuple):
    """What a file holds: its tensors by name, the text stored with them, and whether both were verified."""

    tensors: dict[str, Tensor]
    text: str
    verified: bool


def write_verified(path: Path, tensors: Mapping[str, Tensor], text: str = "") -> None:
    """Write tensors, a text that belongs to them, and the checksum of both."""
    tensors = {name: tensor.detach().cpu() for name, tensor in tensors.items()}  # copied once, if at all
    write_tensors(path, tensors, {_KEY: f"{_MARK}{digest_tensors(tensors, text)} {text}"})


def read_verified(path: str | Path) -> TensorFile:
    """Read a safetensors file; one without a checksum, written by others, is not verified.

    A file that is missing, damaged or of another kind is a `RunError`.
    """
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY, "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, MemoryError) as error:
        # A damaged header can ask for more memory than there is.
        raise RunError(f"cannot be read ({' '.join(str(error).split())})") from None
    if not text.startswith(_MARK):
        return TensorFile(tensors, text, verified=False)
    digest, _, text = text.removeprefix(_MARK).partition(" ")
    if digest != digest_tensors(tensors, text):
        raise RunError("is damaged: its checksum is wrong")
    return TensorFile(tensors, text, verified=True)


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights under the names the bare model gives them, without those of wrappers around it."""
    while isinstance(model, (DataParallel, DistributedDataParallel)):
        model = model.module
    state = model.state_dict()
    return {".".join(part for part in name.split(".") if part != _COMPILED): t for name, t in state.items()}


def load_weights(model: nn.Module, path: str | Path, *, new_head: bool = False) -> str:
    """Fill a model from a file (see `read_weights`), or say which name or shape does not match.

    With `new_head` one layer may have another number of outputs: it keeps the weights it has, and what was
    done is returned in words.
    """
    own, said = plain_state(model), ""
    tensors = read_weights(path, own)
    for name in own.keys() ^ tensors.keys():
        where = "the model, but not in the file" if name in own else "the file, but not in the model"
        raise UserError(f"weights in {str(path)!r} do not match the model: {name!r} is in {where}")
    other = {name: tensor for name, tensor in tensors.items() if tensor.shape != own[name].shape}
    layers = {name.rpartition(".")[0] for name in other}
    if new_head and len(layers) == 1 and all(own[n].shape[1:] == t.shape[1:] for n, t in other.items()):
        (layer,), (name, tensor) = layers, next(iter(other.items()))
        said = f"{layer} has {len(tensor)} outputs in {path}, {len(own[name])} here: it is a new head"
        tensors = {name: tensor for name, tensor in tensors.items() if name not in other}
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            shapes = f"{tuple(tensor.shape)} in the file, {tuple(own[name].shape)} in the model"
            raise UserError(f"weights in {str(path)!r} do not match the model: {name!r} is {shapes}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
    return said


def read_weights(path: str | Path, wanted: Collection[str]) -> dict[str, Tensor]:
    """Read the tensors of a file by name; prefixes are removed where that gives exactly the wanted names.

    The file is a safetensors file, or what `torch.save` wrote: a state dict, alone or inside dictionaries.
    """
    if not Path(path).exists():
        raise UserError(f"weights file {str(path)!r} does not exist")
    open_regular(Path(path)).close()  # raises for a FIFO, which safetensors would wait for
    try:
        candidates = [read_verified(path).tensors]
    except RunError as error:
        if Path(path).suffix == ".safetensors":
            raise UserError(f"{str(path)!r} is not a safetensors file: it {error}") from None
        candidates = _state_dicts(_load_pickle(path))
    if not candidates:
        raise UserError(f"{str(path)!r} holds no state dict; expected a table of tensors by name")
    fitting = (_without_prefixes(candidate, wanted) for candidate in candidates)
    return next((tensors for tensors in fitting if tensors.keys() == set(wanted)), candidates[0])


def _load_pickle(path: str | Path) -> Any:
    """Read what `torch.save` wrote, if that is possible without running code of the file."""
    try:
        if is_zipfile(path) and any(member.compress_type for member in ZipFile(path).infolist()):
            raise ValueError("compressed, which torch.save never does: it could unpack to any size")
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # on a damaged file the restricted unpickler can raise anything
        with Path(path).open("rb") as file:
            in_torch_format = file.read(2) in (b"PK", b"\x80\x02")  # its two formats
        # An operand is a byte of the file that no file of torch.save has there; the rest is refused code.
        refused = isinstance(error, UnpicklingError) and "Unsupported operand" not in str(error)
        if in_torch_format and refused:
            raise UserError(
                f"{str(path)!r} can only be read by running code in it, which is refused; if you trust it,"
                " convert it: torch.save(torch.load(FILE, weights_only=False).state_dict(), NEW_FILE)"
            ) from error
        raise UserError(
            f"{str(path)!r} is damaged, or neither a safetensors file nor from torch.save"
        ) from error


def _state_dicts(content: Any) -> list[dict[str, Tensor]]:
    """Return all tables of tensors in a file, the outermost first."""
    tables, waiting, seen = list[dict[str, Tensor]](), [content], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping) and id(value) not in seen:  # it can be used twice, or inside itself
            seen.add(id(value))
            if value and all(isinstance(item, Tensor) for item in value.values()):
                tables.append({str(name): tensor for name, tensor in value.items()})
            else:
                waiting.extend(reversed(list(value.values())))
    return tables


def _without_prefixes(tensors: dict[str, Tensor], wanted: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors under the wanted names if removing common prefixes leads there, else unchanged."""
    names = tensors
    for _ in range(10):  # a name can repeat a prefix any number of times
        if names.keys() == set(wanted):
            return names
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in names)), "")
        names = {name.removeprefix(prefix): tensor for name, tensor in names.items()}
    return tensors
