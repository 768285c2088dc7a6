"""Weights from files that others wrote."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sora.errors import UserError
from sora.runs import load_weights


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


STATE = network(1).state_dict()
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
    model = network()
    load_weights(model, tmp_path / "w.pt")
    assert all(torch.equal(tensor, STATE[name]) for name, tensor in model.state_dict().items())


def test_a_prefix_that_belongs_to_the_network_stays(tmp_path: Path) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = network(1)

    torch.save(Wrapped().state_dict(), tmp_path / "w.pth")
    model = Wrapped()
    nn.init.zeros_(model.model[0].weight)
    load_weights(model, tmp_path / "w.pth")
    assert torch.equal(model.model[0].weight, STATE["0.weight"])


def test_a_name_that_does_not_fit_is_named_as_in_the_file(tmp_path: Path) -> None:
    torch.save(prefixed(STATE, "backbone."), tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"do not match the model: '(backbone\.)?\d\."):
        load_weights(network(), tmp_path / "w.pt")


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("sprung"),))


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, 2))])
def test_a_file_that_needs_code_is_refused_with_the_way_to_convert_it(
    save: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    save({"model": Trap()}, tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"running code.*weights_only=False\)\.state_dict\(\)") as caught:
        load_weights(network(), tmp_path / "w.pt")
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
            load_weights(network(), tmp_path / "cut.pt")
        assert "\n" not in str(caught.value)


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("no weights")
    (tmp_path / "pop.pt").write_bytes(b"\x80\x02.")  # a pickle that takes from an empty stack
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    for name, message in (
        ("text.pt", "neither a safetensors file nor from torch.save"),
        ("empty.pt", "holds no state dict"),
        ("pop.pt", "is damaged, or"),
    ):
        with pytest.raises(UserError, match=message):
            load_weights(network(), tmp_path / name)
    with pytest.raises(UserError, match="does not exist"):
        load_weights(network(), tmp_path / "none.pt")
