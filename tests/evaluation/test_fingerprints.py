"""Results of one network are never returned for another with the same weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sora
from sora.attacks import create_all
from sora.evaluation.fingerprints import (
    network_fingerprint,
    weights_fingerprint,
    weights_fingerprint_of_file,
)
from sora.evaluation.records import evaluate_into
from sora.runs import RunFolder
from sora.threat import Linf

torch.set_num_threads(1)


class Scaled(nn.Module):
    """Weights alone do not say what it computes."""

    def __init__(self, power: float = 1.0, function: object = torch.abs) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.power, self.function = nn.Linear(75, 5), power, function
        self.offset = torch.zeros(5)  # no buffer: not part of the state

    def forward(self, x: Tensor) -> Tensor:
        return self.layer((x**self.power).flatten(1)) + self.offset  # type: ignore[no-any-return]


def test_options_code_and_hidden_tensors_belong_to_the_network() -> None:
    shifted = Scaled()
    shifted.offset = torch.ones(5)
    networks = [
        Scaled(),
        Scaled(2.0),
        Scaled(function=lambda z: z + 1),
        Scaled(function=lambda z: z + 2),
        shifted,
    ]
    assert len({weights_fingerprint(each) for each in networks}) == 1
    assert len({network_fingerprint(each) for each in networks}) == len(networks)
    assert network_fingerprint(Scaled()) == network_fingerprint(Scaled())
    assert network_fingerprint(Scaled(), {"width": 4}) != network_fingerprint(Scaled(), {"width": 8})


def test_the_source_of_a_users_function_belongs_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from torch import nn\nFACTOR = {}\nclass Net(nn.Flatten):\n    def forward(self, x):\n"
    text += "        return FACTOR * super().forward(x)[:, :5]\ndef build():\n    return Net()\n"
    monkeypatch.syspath_prepend(tmp_path)
    hashes = []
    for number in (1, 2):
        (tmp_path / f"own_source_{number}.py").write_text(text.format(number))
        network = sora.models.create(f"own_source_{number}:build", 5)
        hashes.append(network_fingerprint(network))
    assert hashes[0] != hashes[1]


def test_another_network_with_the_same_weights_is_measured_again(tmp_path: Path) -> None:
    folder, attacks = RunFolder(tmp_path), create_all("clean,fgsm")
    x = torch.rand(30, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    pair = (x, Scaled()(x).argmax(1))
    (first,) = evaluate_into(folder, Scaled(), pair, [Linf(0.05)], attacks, network={"options": {"power": 1}})
    (second,) = evaluate_into(
        folder, Scaled(3.0), pair, [Linf(0.05)], attacks, network={"options": {"power": 3}}
    )
    assert first.accuracy["clean"] == 1.0 > second.accuracy["clean"]
    records = folder.read_evaluations()
    assert [record["network"]["options"]["power"] for record in records] == [1, 3]
    assert all(record["fingerprint"]["sora"] == sora.__version__ for record in records)
    assert records[0]["network"]["fingerprint"] == records[0]["fingerprint"]["network"]


def test_another_version_of_the_package_is_another_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, attacks = RunFolder(tmp_path), create_all("clean")
    pair = torch.rand(4, 3, 5, 5), torch.tensor([0, 1, 2, 3])
    evaluate_into(folder, Scaled(), pair, [Linf(0.05)], attacks)
    monkeypatch.setattr(sora, "__version__", "0.0.1")
    evaluate_into(folder, Scaled(), pair, [Linf(0.05)], attacks)
    assert len(folder.read_evaluations()) == 2


def test_a_file_of_weights_has_the_fingerprint_of_its_model(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = Scaled()
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    assert weights_fingerprint_of_file(tmp_path / "w.safetensors") == weights_fingerprint(model)


def test_records_of_an_older_version_are_kept_and_not_trusted(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    old = {
        "threat": {"norm": "linf", "eps": 0.05},
        "fingerprint": {"weights": "a", "data": "b", "seed": 0, "batch_size": 250},
        "accuracy": {"clean": 0.5},
        "attacks": {"clean": {"n": 4, "low": 0.1, "high": 0.9}},
        "predictions": {"clean": ""},
        "num_classes": 4,
        "zero_gradients": 0.0,
        "versions": {"sora": "0.1.0"},
    }
    folder.write_evaluations([old])
    pair = torch.rand(4, 3, 5, 5), torch.tensor([0, 1, 2, 3])
    evaluate_into(folder, Scaled(), pair, [Linf(0.05)], create_all("clean"))
    assert folder.read_evaluations()[0] == old
    assert len(folder.read_evaluations()) == 2
