"""Methods, attacks, metrics, probes and the loader on an accelerator: no copy to the host within a step."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn

from sora import attacks, metrics, probes
from sora._devices import pick_device
from sora.data import Augment, ImageSet, Loader
from sora.errors import UserError
from sora.methods import create
from sora.probes import ProbedModel
from sora.threat import L2, Linf
from tests.methods.test_table import ROWS
from tests.methods.toys import BALLS, CLASSES, IMAGE, INDEX, batchnorm, images

ATTACKS = ("clean", "fgsm", "pgd2", "pgd2x2", "apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square20")
PROBES = ("samples", "fallen", "boundary", "eps-curve", "landscape", "curvature")
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def slow_if(part: str, names: Any) -> list[Any]:
    """Mark the tests of names that contain this text as slow."""
    return [pytest.param(name, marks=pytest.mark.slow) if part in name else name for name in names]


@pytest.fixture(scope="module")
def exact(device: torch.device) -> bool:
    """Whether the device computes as the CPU does."""
    return device.type == "emulated"


@pytest.mark.parametrize("row", slow_if(" ", ROWS))  # variants of a method
def test_a_method_computes_what_it_computes_on_the_cpu(
    row: str, device: Any, copies: Any, exact: bool
) -> None:
    name = row.split()[0]
    x, y = images(dtype=torch.float32)
    x = x.contiguous(memory_format=torch.channels_last)  # noise is drawn in the order of memory
    results = []
    for place in (torch.device("cpu"), device):
        model = batchnorm().to(place)
        torch.manual_seed(0)
        method = create(name, BALLS["linf"], **ROWS[row].hyper).to(place)
        method.setup(
            shape=IMAGE, epochs=110, model=model, n_train=12, batch_size=6, steps_per_epoch=2, classes=CLASSES
        )
        method.begin_epoch(1)
        batch = (x.to(place), y.to(place), INDEX.to(place))
        method.step(model, *batch[:2], index=batch[2])  # inputs are checked in the first call
        torch.manual_seed(1)
        with copies() as counted:
            out = method.step(model, *batch[:2], index=batch[2])
        if place == device and not ROWS[row].waits:
            assert counted.count == 0
        results.append([p.grad.cpu() for p in model.parameters()] + [out.loss.detach().cpu()])
    if exact:
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("norm", slow_if("l2", BALLS))
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_finds_what_it_finds_on_the_cpu(name: str, norm: str, device: Any, exact: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(4, 2, 8, 8, generator=generator), torch.arange(4) % 5
    x = x.contiguous(memory_format=torch.channels_last)  # as on the CPU: norms are summed in that order
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()
    threat = Linf(0.02) if norm == "linf" else L2(0.1)
    found = []
    for place in (torch.device("cpu"), device):
        attack = attacks.create(name)
        found.append(attack(copy.deepcopy(model).to(place), x.to(place), y.to(place), threat, seed=3).cpu())
    assert (threat.size(found[1] - x) <= threat.eps * 1.001).all()
    assert not exact or torch.equal(*found)


@pytest.mark.slow
def test_metrics_and_probes(device: Any, exact: bool) -> None:
    x, y = images(dtype=torch.float32)
    model = batchnorm().eval()
    values = [
        metrics.measure(copy.deepcopy(model).to(p), x.to(p), y.to(p), Linf(0.1)) for p in ("cpu", device)
    ]
    assert values[0].keys() == set(metrics.names())
    assert not exact or values[0] == values[1]
    for name in PROBES:
        options = {"points": 3} if name in ("landscape", "boundary") else {}
        results = [
            probes.create(name, **options).measure(
                ProbedModel(copy.deepcopy(model).to(place), (x.to(place), y.to(place)), Linf(0.1))
            )
            for place in ("cpu", device)
        ]
        assert results[1], name
        # A matrix product may round differently with where its numbers are in memory.
        here, there = ([float(text) for text in NUMBER.findall(str(result))] for result in results)
        assert not exact or there == pytest.approx(here, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("memory", [4 << 30, 0])
def test_data_that_fits_stays_on_the_device(
    memory: int, device: Any, copies: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sora.data.loader.free_memory", lambda device: memory)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (40, 8, 8, 3), generator=generator, dtype=torch.uint8)
    chosen = ImageSet(pixels, torch.arange(40) % 3).subset(torch.arange(5, 35))
    loaders = [Loader(chosen, 10, Augment.parse(["crop:2", "flip"]), 0, place) for place in ("cpu", device)]
    here, there = list(loaders[0].epoch(1)), loaders[1].epoch(1)
    first = next(there)
    with copies() as counted:
        rest = list(there)
    assert counted.count == 0
    assert counted.uploads == (0 if memory else 3 * len(rest))  # images, labels and positions
    for one, other in zip(here, [first, *rest], strict=True):
        assert torch.equal(one.x, other.x.cpu())
        assert torch.equal(one.y, other.y.cpu())
        assert torch.equal(one.index, other.index.cpu())
        assert other.x.device == device


def test_auto_takes_it_and_errors_name_it(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert pick_device("auto") == pick_device(device.type) == device
    with pytest.raises(
        UserError, match=rf"device 'tpu' is not available; allowed: auto, cpu, {device.type}, "
    ):
        pick_device("tpu")
    with pytest.raises(UserError, match="'meta' is not available"):
        pick_device("meta")
