"""Weights from files that others wrote, and checksums computed once."""

import os
import pickle
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
from torch import Tensor, nn

from sora.errors import UserError
from sora.runs import digest_file, digest_model, load_weights, weights
from tests.data.formats import Evil


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


STATE = small_model(1).state_dict()
CONTENTS: dict[str, Any] = {
    "a state dict": STATE,
    "nested": {"epoch": 3, "state_dict": STATE, "optimizer": {"lr": 0.1, "state": {}}},
    "a second state dict": {"ema": {"other": torch.ones(2)}, "net": {"weights": STATE}},
    "DataParallel": prefixed(STATE, "module."),
    "a framework": {"state_dict": prefixed(STATE, "model.")},
    "both": prefixed(STATE, "module.model."),
}


@pytest.mark.parametrize("content", CONTENTS)
def test_torch_files_are_read_whatever_wraps_their_state_dict(content: str, tmp_path: Path) -> None:
    torch.save(CONTENTS[content], tmp_path / "w.pt")
    model = small_model()
    load_weights(model, tmp_path / "w.pt")
    assert all(torch.equal(tensor, STATE[name]) for name, tensor in model.state_dict().items())


def test_a_prefix_that_belongs_to_the_model_stays(tmp_path: Path) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = small_model(1)

    torch.save(Wrapped().state_dict(), tmp_path / "w.pth")
    model = Wrapped()
    nn.init.zeros_(model.model[0].weight)
    load_weights(model, tmp_path / "w.pth")
    assert torch.equal(model.model[0].weight, STATE["0.weight"])


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, 2))])
def test_a_file_that_needs_code_is_refused_with_the_way_to_convert_it(save, tmp_path) -> None:
    save({"model": Evil(tmp_path / "sprung")}, tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"running code.*weights_only=False\)\.state_dict\(\)") as caught:
        load_weights(small_model(), tmp_path / "w.pt")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_is_cut_off_is_not_said_to_hold_code(zipped: bool, tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    whole = (tmp_path / "w.pt").read_bytes()
    # The older format begins with a pickle, where half the name of a class is the name of another.
    for size in range(2, len(whole), 50) if zipped else range(len(whole) - 200, len(whole), 7):
        (tmp_path / "cut.pt").write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"cut\.pt' is damaged, or neither") as caught:
            load_weights(small_model(), tmp_path / "cut.pt")
        assert "\n" not in str(caught.value)


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("no weights")
    (tmp_path / "pop.pt").write_bytes(b"\x80\x02.")  # a pickle that takes from an empty stack
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    torch.save(prefixed(STATE, "backbone."), tmp_path / "names.pt")
    # A compressed file could unpack to any size; torch.save does not compress.
    with ZipFile(tmp_path / "names.pt") as old, ZipFile(tmp_path / "zip.pt", "w", ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    for name, message in (
        ("text.pt", "neither a safetensors file nor from torch.save"),
        ("empty.pt", "holds no state dict"),
        ("pop.pt", "is damaged, or"),
        ("zip.pt", r"zip\.pt' is damaged, or neither"),
        ("names.pt", r"do not match the model: '(backbone\.)?\d\."),
        ("none.pt", "does not exist"),
    ):
        with pytest.raises(UserError, match=message):
            load_weights(small_model(), tmp_path / name)


def nested(depth: int, *keys: str) -> object:
    """A state dict under every key of a dictionary, which is under every key of another one, and so on."""
    content: object = STATE
    for _ in range(depth):
        content = dict.fromkeys(keys, content)
    return content


def test_small_files_that_look_endless(tmp_path: Path) -> None:
    path, loop = tmp_path / "w.pt", dict[str, object]()
    loop["model"] = {"again": loop}
    torch.save(loop, path)
    with pytest.raises(UserError, match="holds no state dict"):
        load_weights(small_model(), path)
    for content in (nested(60, "a", "b"), loop | {"state": STATE}):
        torch.save(content, path)
        assert weights.read_weights(path, STATE).keys() == STATE.keys()
    assert len(weights._state_dicts(nested(100_000, "a"))) == 1
    torch.save({"module." * 100_000: torch.zeros(1)}, path)
    assert len(weights.read_weights(path, STATE)) == 1


def test_the_fingerprint_of_a_model_follows_every_change() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    seen = [digest_model(model), digest_model(nn.DataParallel(model))]
    assert seen[0] == seen[1]
    model(torch.rand(4, 2))  # changes the running averages
    seen.append(digest_model(model))
    model[0].weight.data.fill_(1)  # which torch does not count as a change
    assert len({*seen, digest_model(model)}) == 3


def test_a_file_is_hashed_again_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, opened = tmp_path / "file", []
    original = weights.open_regular
    monkeypatch.setattr(weights, "open_regular", lambda path: opened.append(path) or original(path))
    monkeypatch.setattr(weights.time, "time_ns", lambda: file.stat().st_ctime_ns + 2 * weights._SETTLED)
    file.write_bytes(b"a")
    first = digest_file(file)
    assert digest_file(file) == first
    assert len(opened) == 1
    file.write_bytes(b"b")
    os.utime(file, ns=(0, 0))
    assert digest_file(file) != first
    monkeypatch.undo()
    seen = set()  # a file that may change unnoticed is read every time
    for number in range(9):  # so fast that some have the same time stamp
        file.write_text(str(number))
        seen.add(digest_file(file))
    assert len(seen) == 9
