"""Public functions called with nonsense: a ValueError or TypeError of one line that says what is expected."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sora
from sora import attacks, curvature, data, methods, models
from sora.errors import UserError, short

LINF = sora.Linf("8/255")
X, Y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 1])
IMAGES = (X * 255).byte()
PAIR = (IMAGES, Y)


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


class NoGradient(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(len(x), 3)


NOT_MODELS: list[Any] = [None, 3, "resnet18", nn.Linear, lambda x: x]
NOT_THREATS: list[Any] = [None, "linf", 8 / 255, sora.Linf, (0, 1)]
NOT_NAMES: list[Any] = [None, 3, [], {}, "", "nothing", b"sora", ("sora",)]
NOT_IMAGES = (None, X.numpy(), IMAGES, X * 255, X - 0.5, X * math.nan, X / 0, X[..., :4], X.to("meta"))
NOT_LABELS = (None, [0, 1, 2, 1], Y.float(), Y.bool(), Y[:2], Y[:, None], Y + 2, Y - 1, Y + 10**12)
NOT_INPUTS: list[tuple[Any, Any]] = [(X[:0], Y[:0]), (X[0, 0, 0], Y[:1])]
NOT_INPUTS += [(x, Y) for x in NOT_IMAGES] + [(X, y) for y in NOT_LABELS]

CALLS: dict[str, Callable[[], Any]] = {}


def add(name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    CALLS[f"{name} {len(CALLS)}"] = lambda: function(*arguments, **named)


for eps in ("8/", "/255", "8/0", "eight", "", "nan", "inf", None, [], True, -1, "-8/255", 8, "300/255", 1e30,
            10**400, b"8"):  # fmt: skip
    add("Linf", sora.Linf, eps)
for eps in ("8/", None, -0.1, 1e30, math.nan, torch.ones(2), b"8"):
    add("L2", sora.L2, eps)
for box in ((1, 0), (0,), (0, 1, 2), 5, "01", (math.nan, 1), (0, math.inf), ("a", "b")):
    add("box", sora.Linf, 0.01, box)

for bad in NOT_NAMES:
    for function in (methods.info, attacks.create, models.info, data.load, data.info, data.get):
        add(f"{function.__module__}.{function.__name__}", function, bad)
    add("methods.create", methods.create, bad, LINF)
    add("models.create", models.create, bad, 10)
    add("fit method", sora.fit, net(), (PAIR, PAIR), method=bad)
for bad in NOT_THREATS:
    add("methods.create threat", methods.create, "sora", bad)
    for attack in (attacks.fgsm, attacks.pgd, attacks.autoattack):
        add(f"{attack.__name__} threat", attack, net(), X, Y, bad)
    add("evaluate threat", sora.evaluate, net(), (X, Y), bad)
for hyper in ({"alpha0": "x"}, {"alpha0": None}, {"alpha0": [1]}, {"beta": 7}, {"nothing": 1},
              {"attack_mode": 3}):  # fmt: skip
    add("hyper-parameters", methods.create, "sora", LINF, **hyper)
for bad in NOT_MODELS:
    add("step model", methods.create("sora", LINF).step, bad, X, Y)
    for attack in (attacks.fgsm, attacks.pgd, attacks.autoattack):
        add(f"{attack.__name__} model", attack, bad, X, Y, LINF)
    add("evaluate model", sora.evaluate, bad, (X, Y), LINF)
    add("fit model", sora.fit, bad, (PAIR, PAIR))
for x, y in NOT_INPUTS:
    for name in ("sora", "fgsm", "pgd-2", "trades"):
        add(f"step {name}", methods.create(name, LINF).step, net(), x, y)
    for attack in (attacks.fgsm, attacks.pgd, attacks.autoattack):
        add(attack.__name__, attack, net(), x, y, LINF)
    add("evaluate", sora.evaluate, net(), (x, y), LINF)
for named in ({"steps": 0}, {"steps": "3"}, {"steps": 1.5}, {"restarts": 0}, {"restarts": None},
              {"select": "all"}, {"step_size": "x"}, {"step_size": []}, {"generator": 3}):  # fmt: skip
    add("pgd options", attacks.pgd, net(), X, Y, LINF, **named)
for named in ({"attacks": ""}, {"attacks": "pgd"}, {"attacks": []}, {"attacks": [3]}, {"attacks": 3},
              {"attacks": None}, {"batch_size": 0}, {"batch_size": "9"}, {"seed": -1}, {"seed": None},
              {"seed": 2**64}, {"device": "meta"}, {"device": "nowhere"}, {"device": 1.5},
              {"num_classes": 7}):  # fmt: skip
    add("evaluate options", sora.evaluate, net(), (X, Y), LINF, **named)
for bad in (None, 3, "digits", [], [3], [(X,)], [(None, None)], (X, Y, Y), {},
            (X.numpy()[::-1], Y.numpy()[::-1])):  # fmt: skip
    add("evaluate data", sora.evaluate, net(), bad, LINF)
add("evaluate without gradients", sora.evaluate, NoGradient(), (X, Y), LINF)
for bad in (None, 3, [], (PAIR,), (PAIR, 3), (PAIR, (IMAGES, None)), ((X, Y), PAIR), ((IMAGES[0], Y), PAIR),
            ((IMAGES, Y.float()), PAIR), ((IMAGES, Y + 10**12), PAIR), ((IMAGES, Y - 1), PAIR),
            ((IMAGES, Y[:2]), PAIR), ((IMAGES[:0], Y[:0]), PAIR), "nothing", "folder:"):  # fmt: skip
    add("fit data", sora.fit, net(), bad)
for named in ({"eps": "8/"}, {"eps": 8}, {"eps": None}, {"eps": 0}, {"epochs": 0}, {"epochs": "x"},
              {"nothing": 1}, {"norm": "l7"}, {"attacks": ""}, {"device": "meta"}, {"threads": 9_999_999},
              {"threads": -1}, {"batch_size": 10**9}, {"set": 3}, {"set": {"sora.nothing": 1}},
              {"augment": "crop:x"}, {"init": "/nowhere.safetensors"}, {"guard": 3}, {"monitor": "nothing"},
              {"lr": math.nan}, {"lr": 10**400}, {"seed": 1.5}, {"limit_train": 10**9},
              {"holdout": 10**9}):  # fmt: skip
    add("fit settings", sora.fit, net(), (PAIR, PAIR), **{"epochs": 1, "quiet": True, **named})
for place in (f"{__file__}/run", __file__, "a\0b"):
    add("fit out", sora.fit, net(), (PAIR, PAIR), epochs=1, batch_size=2, holdout=0, quiet=True, out=place)
add("fit without parameters", sora.fit, nn.Flatten(), (PAIR, PAIR), quiet=True)
for named in ({"num_classes": 1}, {"num_classes": "10"}, {"num_classes": None}, {"in_channels": 0},
              {"image_size": -1}, {"width": 0}, {"width": 1.5}, {"mean": 3}, {"mean": ["a"]},
              {"mean": [1, 2]}, {"std": [0]}, {"std": [math.nan]}, {"nothing": 1}, {"stages": "x"},
              {"stages": 0}):  # fmt: skip
    add("models.create options", models.create, "preactresnet18", **{"num_classes": 10, **named})
for bad in ("torch.nn:Linear", "os:nothing", "nothing:f", ":", "time:sleep", "builtins:len", "os:getcwd"):
    add("models.create code", models.create, bad, 10)
for bad in (3, [], b"x"):
    add("data root", data.load, "digits", bad)
for bad in (None, 3, "digits"):
    add("split", data.split, bad)
for named in ({"holdout": -1}, {"holdout": 10**9}, {"limit_train": "x"}, {"limit_test": 1.5}):
    add("split sizes", data.split, data.load("digits"), **named)
for bad in (3, None, X, IMAGES[0]):
    add("ImageSet images", data.ImageSet, bad, Y)
    add("ImageSet labels", data.ImageSet, IMAGES.permute(0, 2, 3, 1), bad)
for labels in (None, Y.float(), Y - 1, Y + 10**12, Y[:, None]):
    add("stratified", data.stratified, labels, 2, 0)
for bad in ("crop", ["crop"], ["crop:x"], ["spin"], [3], ["flip", "flip"]):
    add("Augment.parse", data.Augment.parse, bad)
for bad in (None, 0, 10**9, "9"):
    add("Loader", data.Loader, data.load("digits").train, bad, data.Augment(), 0)
for function in (curvature.pert_align, curvature.alt_pert_align, curvature.linearity):
    for g in (None, 3.0, X[:2], X[0, 0, 0], X.numpy()):
        add(function.__name__, function, X, g)
        add(function.__name__, function, g, X)
add("linearity", curvature.linearity, X, X, "l7")
for arguments in ((None, 1, 1), ("x", 1, 1), (torch.ones(()), "x", 1), (torch.ones(()), 1, None)):
    add("optimal_step", curvature.optimal_step, *arguments)
for bad in ("x", None, [], torch.ones(2)):
    add("Guard.update", sora.Guard().update, bad)
for named in ({"start": "x"}, {"decay": None}, {"silent": math.nan}):
    add("Guard", sora.Guard, **named)
for bad in ("/nowhere", "", Path("/")):
    add("load", sora.load, bad)


@pytest.mark.parametrize("name", CALLS)
def test_a_bad_call_says_what_is_expected(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UserError, TypeError)) as caught:
        CALLS[name]()
    message = str(caught.value)
    assert 10 < len(message) < 2000
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_a_radius_in_pixel_levels_and_a_number_too_large_to_print_are_recognised() -> None:
    assert len(CALLS) > 300
    with pytest.raises(UserError, match=r"eps 8 is larger than the pixel range .*; did you mean 8/255\?"):
        sora.Linf(8)
    assert sora.Linf(8, box=(0, 255)).eps == 8
    assert sora.Linf(8, box=None).eps == 8
    assert sora.L2(3).eps == 3
    large = 10**5000
    for value in (large, -large, {"epochs": large}, [large]):
        assert "integer of 16610 bits" in short(value)
