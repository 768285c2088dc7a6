"""Results of one network are never returned for another with the same weights."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sora
from sora.attacks import create_all
from sora.evaluation import EvaluationOptions
from sora.evaluation.fingerprints import model_fingerprint
from sora.evaluation.records import evaluate_into
from sora.runs import RunFolder, digest_model
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


class Helper:
    """Refers to the network, as a helper object often does."""

    def __init__(self, network: nn.Module, factor: float) -> None:
        self.network, self._factor = network, factor

    def scale(self, z: Tensor) -> Tensor:
        return z * self._factor


def with_attribute(make: Callable[[nn.Module], object]) -> nn.Module:
    network = Scaled()
    network.__dict__["_private"] = make(network)
    return network


def with_hook(kind: str, add: float) -> nn.Module:
    network = Scaled()
    getattr(network.layer, f"register_{kind}_hook")(lambda *args: args[-1] + add)
    return network


def with_buffer(number: float) -> nn.Module:
    network = Scaled()
    network.register_buffer("hidden", torch.full((2,), number), persistent=False)
    return network


def hidden_module(bias: float) -> list[nn.Module]:
    layer = nn.Linear(2, 2)
    for parameter in layer.parameters():
        nn.init.constant_(parameter, bias)
    return [layer]


def empty_cell(number: int) -> Callable[[], object]:
    def function(default: int = number) -> object:
        return later, default

    if number < 0:
        later = 1
    return function


def with_shared_module(chosen: str) -> nn.Module:
    """A network with a cycle, and one of two equal modules under a second name."""
    network = with_attribute(lambda net: [net, Helper(net, 1.0)])
    network.a, network.b = nn.ReLU(), nn.ReLU()
    network.chosen = getattr(network, chosen)
    return network


DIFFERENT: dict[str, Callable[[float], nn.Module]] = {
    "option": Scaled,
    "code": lambda n: Scaled(function=(lambda z: z + 1) if n == 1 else (lambda z: z + 2)),
    "tensor": lambda n: with_attribute(lambda _: torch.full((5,), n)),
    "shared module": lambda n: with_shared_module("a" if n == 1 else "b"),
    "number": lambda n: with_attribute(lambda _: n),
    "object": lambda n: with_attribute(lambda net: Helper(net, n)),
    "bound method": lambda n: with_attribute(lambda net: Helper(net, n).scale),
    "partial": lambda n: with_attribute(lambda _: functools.partial(torch.add, alpha=n)),
    "default": lambda n: with_attribute(lambda _: empty_cell(int(n))),
    "built-in": lambda n: with_attribute(lambda _: torch.abs if n == 1 else torch.neg),
    "built-in method": lambda n: with_attribute(lambda _: torch.tensor(n).mul),
    "class": lambda n: with_attribute(lambda _: Helper if n == 1 else Scaled),
    "array": lambda n: with_attribute(lambda _: np.array([1.0, n])),
    "generator": lambda n: with_attribute(lambda _: torch.Generator().manual_seed(int(n))),
    "hidden module": lambda n: with_attribute(lambda _: hidden_module(n)),
    "nesting": lambda n: with_attribute(lambda _: [[1, 2], 3] if n == 1 else [[1], 2, 3]),
    "buffer": with_buffer,
    "forward hook": lambda n: with_hook("forward", n),
    "forward pre-hook": lambda n: with_hook("forward_pre", n),
    "backward hook": lambda n: with_hook("full_backward", n),
    "backward pre-hook": lambda n: with_hook("full_backward_pre", n),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_every_attribute_and_hook_belongs_to_the_network(name: str) -> None:
    first, same, other = (DIFFERENT[name](number) for number in (1.0, 1.0, 2.0))
    assert model_fingerprint(first) == model_fingerprint(same) != model_fingerprint(other)
    assert digest_model(first) == digest_model(other)  # weights alone do not tell them apart


def test_the_description_belongs_to_the_network_and_compiling_it_again_changes_nothing() -> None:
    assert model_fingerprint(Scaled(), {"width": 4}) != model_fingerprint(Scaled(), {"width": 8})
    network = Scaled()
    plain, compiled = model_fingerprint(network), model_fingerprint(torch.compile(network))
    assert model_fingerprint(torch.compile(network)) == compiled
    assert model_fingerprint(network) == plain


def test_what_cannot_be_hashed_is_never_the_same_except_in_torchs_own_modules() -> None:
    network = with_attribute(lambda _: object())
    assert model_fingerprint(network) != model_fingerprint(network)
    networks = [nn.Linear(2, 2), nn.Linear(2, 2)]
    for network in networks:
        network._private = object()
    assert model_fingerprint(networks[0]) == model_fingerprint(networks[1])
    networks[1]._option = 2
    assert model_fingerprint(networks[0]) != model_fingerprint(networks[1])


def test_the_source_of_a_users_function_belongs_to_it(tmp_path: Path, monkeypatch) -> None:
    text = "from torch import nn\nFACTOR = {}\nclass Net(nn.Flatten):\n    def forward(self, x):\n"
    text += "        return FACTOR * super().forward(x)[:, :5]\ndef build():\n    return Net()\n"
    monkeypatch.syspath_prepend(tmp_path)
    hashes = []
    for number in (1, 2):
        (tmp_path / f"own_source_{number}.py").write_text(text.format(number))
        network = sora.models.create(f"own_source_{number}:build", 5)
        hashes.append(model_fingerprint(network))
    assert hashes[0] != hashes[1]


def test_another_network_with_the_same_weights_is_measured_again(tmp_path: Path) -> None:
    folder, attacks = RunFolder(tmp_path), create_all("clean,fgsm")
    x = torch.rand(30, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    pair = (x, Scaled()(x).argmax(1))
    described = [(power, EvaluationOptions(network={"options": {"power": power}})) for power in (1.0, 3.0)]
    first, second = (
        evaluate_into(folder, Scaled(power), pair, [Linf(0.05)], attacks, options)[0]
        for power, options in described
    )
    assert first.accuracy["clean"] == 1.0 > second.accuracy["clean"]
    records = folder.read_evaluations()
    assert [record["network"]["options"]["power"] for record in records] == [1, 3]
    assert all(record["fingerprint"]["sora"] == sora.__version__ for record in records)
    assert records[0]["network"]["fingerprint"] == records[0]["fingerprint"]["network"]


def test_another_version_of_the_package_is_another_record(tmp_path: Path, monkeypatch) -> None:
    folder, attacks = RunFolder(tmp_path), create_all("clean")
    pair = torch.rand(4, 3, 5, 5), torch.tensor([0, 1, 2, 3])
    evaluate_into(folder, Scaled(), pair, [Linf(0.05)], attacks)
    monkeypatch.setattr(sora, "__version__", "0.0.1")
    evaluate_into(folder, Scaled(), pair, [Linf(0.05)], attacks)
    assert len(folder.read_evaluations()) == 2


SCRIPT = """
from torch import nn

SLOPE = 0.1

def helper(x):
    return SLOPE * x

class Net(nn.Module):
    def forward(self, x):
        return [helper(x) for x in [x]][0]

    @property
    def slope(self):
        return 1

def train():
    return 5
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("return 5", "return 6", True),  # how a script trains its model
        ("SLOPE * x", "SLOPE + x", False),
        ("SLOPE = 0.1", "SLOPE = 0.2", False),
        ("[0]", "[-1]", False),
        ("return 1", "return 2", False),
    ],
)
def test_of_a_script_what_the_model_uses_belongs_to_it(old: str, new: str, same: bool) -> None:
    found = []
    for text in (SCRIPT, SCRIPT.replace(old, new)):
        names: dict[str, object] = {"__name__": "__main__"}
        exec(text, names)
        found.append(model_fingerprint(names["Net"]()))
    assert (found[0] == found[1]) == same
