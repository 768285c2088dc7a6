import numpy as np
import pytest
import torch
from torch import nn

from sora.errors import UserError
from sora.models import create, info, names, register

ALL = ["patchresnet", "preactresnet18", "resnet18", "senet18", "vit-small", "wideresnet28-10"]


@pytest.mark.parametrize("name", ALL)
def test_info_has_a_summary_and_a_paper(name: str) -> None:
    assert names() == ALL
    known = info(name)
    assert known.name == name
    assert known.summary
    assert "\n" not in known.summary
    assert known.paper[-4:].isdigit()  # ends with the year
    assert known.options["width"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "preactresnet"}, "^unknown model 'preactresnet'; did you mean 'preactresnet18'? allow"),
        ({"name": "resnet18", "stage": 2}, "^unknown option of resnet18 'stage'; did you mean 'stages'? all"),
        ({"name": "vit-small", "stages": 2}, "^unknown option of vit-small 'stages'; allowed: depth, heads"),
        ({"num_classes": 1}, "^num_classes must be an integer >= 2, not 1$"),
        ({"num_classes": 2.0}, "^num_classes must be an integer >= 2, not 2.0$"),
        ({"in_channels": 0}, "^in_channels must be an integer >= 1, not 0$"),
        ({"image_size": 0}, "^image_size must be an integer >= 1, not 0$"),
        ({"width": 0}, "^width must be an integer >= 1, not 0$"),
        ({"width": True}, "^width must be an integer >= 1, not True$"),
        ({"stages": 5}, "^stages must be an integer from 1 to 4, not 5$"),
        ({"stages": "2"}, "^stages must be an integer from 1 to 4, not '2'$"),
        ({"shortcut_input": "row"}, "unknown shortcut_input 'row'; did you mean 'raw'? allowed: activated"),
        ({"name": "senet18", "stages": 0}, "^stages must be an integer from 1 to 4, not 0$"),
        ({"name": "patchresnet", "image_size": 9}, "^image_size 9 is not divisible by patch 2$"),
        ({"name": "patchresnet", "blocks": 0}, "^blocks must be an integer >= 1, not 0$"),
        ({"name": "vit-small", "image_size": 30}, "^image_size 30 is not divisible by patch 4$"),
        ({"name": "vit-small", "width": 64}, "^width 64 is not divisible by heads 6$"),
        ({"name": "vit-small", "patch": 0}, "^patch must be an integer >= 1, not 0$"),
        ({"name": "vit-small", "depth": 0}, "^depth must be an integer >= 1, not 0$"),
        ({"name": "wideresnet28-10", "depth": 30}, r"^depth must be 6 n \+ 4 .*, not 30$"),
        ({"name": "wideresnet28-10", "depth": 4}, "^depth must be an integer >= 10, not 4$"),
        ({"name": "wideresnet28-10", "widen": 0}, "^widen must be an integer >= 1, not 0$"),
        ({"name": "wideresnet28-10", "widen": 2, "width": 64}, "^width 64 and widen 2 disagree"),
        ({"name": "wideresnet28-10", "dropout": 1.0}, "^dropout must be a number .* below 1, not 1.0$"),
        ({"name": "wideresnet28-10", "dropout": "0.3"}, "^dropout must be a number .*, not '0.3'$"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_allowed(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("? ", r"\? ")) as caught, torch.device("meta"):
        create(**{"name": "preactresnet18", "num_classes": 10, **arguments})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_registered_builder_is_called_with_what_it_accepts() -> None:
    @register("linear", summary="one layer", paper="none")
    def linear(num_classes: int, image_size: int, bias: bool = True) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * image_size**2, num_classes, bias=bias))

    assert names() == sorted([*ALL, "linear"])

    model = create("linear", 5, image_size=4, bias=False)
    assert model(torch.rand(2, 3, 4, 4)).shape == (2, 5)
    assert len(list(model.parameters())) == 1
    assert info("linear").options == {"bias": True}
    with pytest.raises(ValueError, match="model 'linear' is already registered"):
        register("linear", summary="", paper="")(linear)
    numbered = create("linear", np.int64(7), image_size=4)  # type: ignore[arg-type]
    assert numbered(torch.rand(1, 3, 4, 4)).shape == (1, 7)


@pytest.mark.parametrize("width", [3000, 10**8])
def test_a_model_that_does_not_fit_into_memory_is_refused_before_it_is_built(width: int) -> None:
    with pytest.raises(UserError, match=r"exceeds the limit of 536,870,912 parameters$"):
        create("preactresnet18", 10, width=width)


def test_the_check_of_its_size_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(0)
    weights = create("preactresnet18", 10, width=4).network.stem.weight
    torch.manual_seed(0)
    assert torch.equal(weights, info("preactresnet18").build(num_classes=10, width=4).stem.weight)
