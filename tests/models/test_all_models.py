"""What holds for every model, and the tables of docs/models.md; tests/docs runs its code."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sora.errors import UserError
from sora.models import create, info, names

CNNS = ["patchresnet", "preactresnet18", "resnet18", "senet18", "wideresnet28-10"]
SMALL: dict[str, dict[str, Any]] = {
    "patchresnet": {"width": 8, "blocks": 2},
    "preactresnet18": {"width": 8},
    "resnet18": {"width": 8},
    "senet18": {"width": 8},
    "wideresnet28-10": {"width": 8, "depth": 10, "dropout": 0.0},
    "vit-small": {"width": 24, "depth": 2, "heads": 3},
}
PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip(" `") for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line[:3] == "| `"
]
PARAMETERS = {row[0]: row[1:] for row in ROWS if len(row) == 6}
DATA = [(10, 3, 32), (100, 3, 32), (200, 3, 64), (9, 3, 28), (8, 1, 28)]  # classes, channels, pixels


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def small(name: str, num_classes: int = 10, in_channels: int = 3, image_size: int = 32) -> nn.Module:
    return create(name, num_classes, in_channels, image_size, **SMALL[name])


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", names())
def test_the_table_of_parameters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(PARAMETERS) == names()
    monkeypatch.setattr("sora.models._refuse_too_large", lambda *_: None)  # builds each a second time
    with torch.device("meta"):
        assert [f"{count(create(name, *sizes)):,}" for sizes in DATA] == PARAMETERS[name]


def test_the_page_names_every_option() -> None:
    options = {option for name in names() for option in info(name).options}
    assert [option for option in options if f"`{option}`" not in PAGE] == []


@pytest.mark.parametrize(("classes", "expected"), [(10, 46_160_474), (100, 46_218_164), (200, 46_282_264)])
def test_parameters_of_wideresnet_34_10(classes: int, expected: int) -> None:
    with torch.device("meta"):
        assert count(create("wideresnet28-10", classes, depth=34, widen=10, dropout=0.0)) == expected


@pytest.mark.parametrize("pixels", [28, 32, 64])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", SMALL)
def test_small_models_give_finite_logits(name: str, channels: int, pixels: int) -> None:
    logits = small(name, 7, channels, pixels)(torch.rand(2, channels, pixels, pixels))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()


@pytest.mark.parametrize("width", [1, 3, 24])
@pytest.mark.parametrize("name", CNNS)
def test_convolutional_models_of_any_width_take_maps_that_are_not_square(name: str, width: int) -> None:
    assert create(name, 10, width=width)(torch.rand(2, 3, 16, 21)).shape == (2, 10)
    with pytest.raises(UserError, match=r"^this ViT expects images of 32x32 pixels, got 32x28$"):
        small("vit-small")(torch.rand(2, 3, 32, 28))


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["preactresnet18", "resnet18", "senet18"])
def test_stages_keeps_the_first_stages_of_two_blocks_each(name: str, stages: int) -> None:
    network: Any = create(name, 10, width=4, stages=stages).network
    assert [len(stage) for stage in network.stages] == [2] * stages
    assert network.head.in_features == 4 * 2 ** (stages - 1)
    x, sizes = torch.rand(2, 4, 28, 28), []
    for stage in network.stages:
        x = stage(x)
        sizes.append(x.shape[-1])
    assert sizes == [28, 14, 7, 4][:stages]


@pytest.mark.parametrize("name", SMALL)
def test_modes_and_seeds_are_deterministic_and_evaluation_changes_no_buffer(name: str) -> None:
    model, x = small(name).eval(), torch.rand(4, 3, 32, 32)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert torch.equal(model(x), model(x))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    model.train()  # without dropout
    assert torch.equal(model(x), model(x))

    def weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.flatten() for p in small(name).parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", SMALL)
def test_gradient_reaches_every_parameter_and_the_image(name: str, training: bool) -> None:
    model = small(name).train(training)
    x = torch.rand(4, 3, 32, 32, requires_grad=True)
    model(x).square().sum().backward()
    assert x.grad is not None
    assert x.grad.abs().amax(dim=(1, 2, 3)).gt(0).all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_input_gradient_can_be_differentiated_again(name: str) -> None:
    model = small(name).double()
    x = torch.rand(2, 3, 32, 32, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).logsumexp(1).sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("name", CNNS)
def test_channels_last_stays_channels_last(name: str) -> None:
    model: Any = small(name).to(memory_format=torch.channels_last)
    formats = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm2d) and module.weight.shape[0] > 1:
            module.register_forward_hook(
                lambda _m, _i, out: formats.append(out.is_contiguous(memory_format=torch.channels_last))
            )
    x = torch.rand(2, 3, 32, 32).to(memory_format=torch.channels_last)
    plain = small(name)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(x), plain(x.contiguous()), rtol=1e-3, atol=1e-4)
    assert len(formats) > 10
    assert all(formats)


@pytest.mark.parametrize("name", SMALL)
def test_one_graph_without_breaks(name: str) -> None:
    fewer = {"stages": 2} if "stages" in info(name).options else {}
    model, x = create(name, 10, **SMALL[name], **fewer).eval(), torch.rand(2, 3, 32, 32)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), model(x))
