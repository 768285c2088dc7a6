"""What methods store per image, per row or per group."""

import pytest
import torch
from torch import Tensor, nn

from sora.methods import create

from .toys import CLASSES, IMAGE, LINF, MODEL, X, Y, prepared, run, two_layer

PER_IMAGE = {"atas": 1, "fgsm-ep": 1, "fgsm-mep": 2, "fgsm-mep-cs": 2, "fgsm-pco": 1}
N = 12
each_method = pytest.mark.parametrize(("name", "count"), PER_IMAGE.items())


def stored(name: str, device: str = "cpu", **options: object) -> list[Tensor]:
    """The buffers with something for every pixel of every training image."""
    method = create(name, LINF, **options).to(device)
    method.setup(n_train=N, shape=IMAGE, batch_size=6, epochs=30, steps_per_epoch=2, classes=CLASSES)
    return [buffer for buffer in method.buffers() if buffer.shape == (N, *IMAGE)]


@each_method
def test_half_precision_halves_what_is_stored_on_the_device_or_on_request_on_the_host(name, count) -> None:
    full, half = stored(name), stored(name, dtype="float16")
    assert len(full) == len(half) == count
    assert sum(tensor.nbytes for tensor in full) == count * N * 4 * torch.Size(IMAGE).numel()
    assert 2 * sum(tensor.nbytes for tensor in half) == sum(tensor.nbytes for tensor in full)
    assert [tensor.device.type for tensor in stored(name, "meta")] == ["meta"] * count
    assert [tensor.device.type for tensor in stored(name, "meta", storage="cpu")] == ["cpu"] * count


@each_method
def test_the_attack_depends_on_the_format_by_rounding_and_not_on_the_place(name: str, count: int) -> None:
    options = ({}, {"storage": "cpu"}, {"dtype": "float16"})
    found = [run(prepared(name, **option))[0].x_adv for option in options]
    assert torch.equal(found[0], found[1])
    full, half = (torch.empty(8, dtype=dtype) for dtype in (torch.float32, torch.float16))
    full, half = (each.uniform_(generator=torch.Generator().manual_seed(0)) for each in (full, half))
    same_draw = torch.allclose(full, half.float(), atol=1e-2)  # not in torch 2.6
    changed = (found[0] - found[2]).abs() > 1e-4
    assert (
        not same_draw or changed.double().mean() < 0.02
    )  # rounding may turn the sign of a gradient that is almost zero


@pytest.mark.parametrize("name", ["fgsm-bp", "tdat", "free"])
def test_rows_are_stored_and_those_beyond_the_batch_stay(name: str) -> None:
    method = prepared(name)
    values = method.delta if name == "free" else method.delta.values
    before = values.clone()
    assert before.shape == (7, *IMAGE)
    out, _ = run(method, x=X[:4], y=Y[:4])
    if name != "free":  # its step comes after the update
        torch.testing.assert_close(values[:4], (out.x_adv - X[:4]).float(), rtol=0, atol=1e-7)
    assert not torch.equal(values[:4], before[:4])
    assert torch.equal(values[4:], before[4:])


@pytest.mark.parametrize("name", ["fgsm-mep", "fgsm-ep", "fgsm-bp", "fgsm-uap", "fgsm-cuap", "fgsm-fuap"])
def test_a_zero_gradient_changes_nothing_and_is_counted(name: str) -> None:
    model, method = two_layer(), prepared(name)
    nn.init.zeros_(model[-1].weight)
    names = {"delta.values", "mom.values", "u", "m"} & method.state_dict().keys()
    before = {name: method.state_dict()[name].clone() for name in names}
    out, _ = run(method, model)
    assert out.extras["skipped"].item() == 1
    assert names
    assert all(torch.equal(method.state_dict()[name], value) for name, value in before.items())
    run(method, MODEL)
    assert not all(torch.equal(method.state_dict()[name], value) for name, value in before.items())
