"""The bytes docs/scale.md promises: over the network a step, and in memory an image."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sora import data, methods, models
from sora.methods import Method
from sora.settings import Request
from sora.threat import Linf
from sora.training import distributed
from sora.training.journal import Journal

PAGE = (Path(__file__).parent.parent / "docs" / "scale.md").read_text()
PARAMETERS = 1 * 4 * 9 + 4 + 144 * 3 + 3  # of `network`
torch.set_num_threads(1)
CIFAR_AUGMENT = Request({"dataset": "cifar10", "method": "atas"}).resolve().settings.augment


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes of each all-reduce outside DDP, in a group of one process that takes itself for one of two."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    monkeypatch.setattr(distributed, "world", lambda: 2)
    found: list[int] = []
    real = dist.all_reduce

    def counted(tensor: torch.Tensor, *args: Any, **known: Any) -> Any:
        found.append(tensor.nbytes)
        return real(tensor, *args, **known)

    monkeypatch.setattr(dist, "all_reduce", counted)
    yield found
    dist.destroy_process_group()


def gradient_bytes(model: nn.Module) -> list[int]:
    """Filled with the bytes of each bucket of gradients that DDP reduces."""
    found: list[int] = []

    def hook(state, bucket):  # torch compares annotations with types, which strings are not
        found.append(bucket.buffer().nbytes)
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    assert isinstance(model, DistributedDataParallel)
    model.register_comm_hook(None, hook)
    return found


@pytest.mark.filterwarnings("ignore:.*broadcast_buffers:FutureWarning")
@pytest.mark.parametrize(
    ("name", "more"), [("benign", 0), ("fgsm-rs", 0), ("n-fgsm", 0), ("pgd-10", 0), ("sora", 8)]
)
def test_a_step_sends_its_gradients_once_and_sora_eight_bytes(name: str, more: int, sent: list[int]) -> None:
    model = distributed.wrap(network())
    reduced = gradient_bytes(model)
    method = methods.create(name, Linf(8 / 255))
    for step in (1, 2, 3):
        method.step(model, torch.rand(4, 1, 8, 8), torch.arange(4) % 3)
        assert sum(reduced) == step * 4 * PARAMETERS
        assert sum(sent) == step * more


def test_soras_log_and_memory_and_preactresnet_have_the_bytes_of_the_page(sent: list[int]) -> None:
    method = methods.create("sora", Linf(8 / 255))
    journal = Journal({}, torch.device("cpu"))
    for _ in range(10):
        journal.note(method.step(network(), torch.rand(4, 1, 8, 8), torch.arange(4) % 3), 0.1)
    sent.clear()
    journal.collect()
    assert sent == [960]
    assert "log of ten steps 960" in PAGE
    count = sum(p.numel() for p in models.create("preactresnet18", 10).parameters())
    assert f"{count / 1e6:.1f} million parameters: {4 * count / 1e6:.0f} MB" in PAGE
    method = methods.create("sora", Linf(8 / 255))
    assert sum(buffer.nbytes for buffer in method.buffers()) == 32
    assert "| SORA | 32 bytes |" in PAGE


def bound(size: int, augment: tuple[str, ...], **hyper: Any) -> Method:
    """ATAS set up for two images, as the trainer does it."""
    canvas = data.Augment.parse(augment).draw(1, (size, size), torch.Generator()).canvas_size(size, size)
    method = methods.create("atas", Linf(8 / 255), **hyper)
    sizes = {"batch_size": 2, "epochs": 1, "steps_per_epoch": 1}
    method.setup(n_train=2, shape=(3, size, size), canvas=(3, *canvas), **sizes)
    return method


@pytest.mark.parametrize(
    ("augment", "size", "text"),
    [
        (CIFAR_AUGMENT, 32, "40 x 40 x 3 x 4 = {kilo} kB each"),
        (("flip",), 224, "224 x 224 x 3 x 4 = {kilo} kB each"),
    ],
)
def test_atas_remembers_an_images_canvas_and_four_bytes(augment: list[str], size: int, text: str) -> None:
    method = bound(size, tuple(augment))
    image = method.get_buffer("delta.values").nbytes // 2
    assert text.format(kilo=round(image / 1000)) in PAGE
    assert method.get_buffer("u").nbytes == 2 * 4
    half = bound(size, tuple(augment), dtype="float16")
    assert half.get_buffer("delta.values").nbytes == image
