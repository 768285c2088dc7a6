"""What the skeleton offers to a method: a head with its own optimiser, a call after each update, averages."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sora.errors import UserError
from sora.methods import Crafted, Inputs, Learned, Method, OwnOptimizer, create, register
from sora.training import Hook

from .test_resume import assert_resumes, run
from .toys import CLASSES, LINF, images, two_layer


class Headed(Method):
    """Trains a head on clean inputs beside the model, and averages the model's weights."""

    average: nn.Module
    head: nn.Module
    adam: OwnOptimizer
    seen: Tensor

    def setup(self, *, shape: tuple[int, ...], classes: int | None = None, **known: Any) -> None:
        assert classes is not None
        self.average = copy.deepcopy(known["model"]).requires_grad_(False)
        self.head = nn.Linear(torch.Size(shape).numel(), classes).to(next(self.average.parameters()))
        self.adam = OwnOptimizer(torch.optim.Adam(self.head.parameters(), lr=0.01))

    @property
    def averaged(self) -> nn.Module | None:
        return self.average

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        with torch.enable_grad():
            loss = self.train_loss(self.head(batch.x.flatten(1)), batch.y)
            self.adam.minimize(loss)
        return Crafted(self.threat.step(batch.x, self.head(batch.x.flatten(1)).sum() * batch.x, 0.01))

    def update_state(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        weight: Tensor = self.head.weight
        return {"head": weight.detach().abs().mean()}

    def after_update(self, model: nn.Module) -> None:
        with torch.no_grad():
            for mine, theirs in zip(
                self.average.state_dict().values(), model.state_dict().values(), strict=True
            ):
                mine.copy_(mine.lerp(theirs, 0.5) if mine.is_floating_point() else theirs)


@pytest.fixture
def headed() -> str:
    register("headed-toy", "a head and an average", has_pert_align=False)(Headed)
    return "headed-toy"


def prepared(model: nn.Module) -> Headed:
    torch.manual_seed(0)
    method = Headed(LINF, Method.hyper_class())
    method.setup(shape=(2, 4, 4), classes=CLASSES, model=model)
    return method


def test_a_head_and_its_optimiser_are_part_of_the_state_and_leave_no_gradient() -> None:
    model, (x, y) = two_layer(), images()
    method, fresh = prepared(model), prepared(model)
    for _ in range(3):
        method.step(copy.deepcopy(model), x, y)
    state = {name: value.clone() for name, value in method.state_dict().items()}
    assert {"adam.0.exp_avg", "adam.1.exp_avg_sq", "adam.0.step", "head.weight"} <= set(state)
    fresh.load_state_dict(state)
    for one in (method, fresh):
        one.step(copy.deepcopy(model), x, y)
    for name, value in method.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name]), name
    model, (x, y) = two_layer(), images()
    method = prepared(model)
    state = {name: value.clone() for name, value in method.state_dict().items()}
    first = method.step(copy.deepcopy(model), x, y).extras["head"]
    method.load_state_dict(state)
    assert torch.equal(method.step(copy.deepcopy(model), x, y).extras["head"], first)
    model, (x, y) = two_layer(), images()
    method = prepared(model)
    method.craft(model, Inputs(x, y, ()))
    assert all(parameter.grad is None for parameter in [*model.parameters(), *method.head.parameters()])


def test_a_killed_run_with_a_head_continues_bit_for_bit_and_hands_over_the_average(headed, tmp_path) -> None:
    last: dict[str, Tensor] = {}

    class Raw(Hook):
        def after_step(self, run: Any, out: Any) -> None:
            last.update({name: value.clone() for name, value in run.state.model.state_dict().items()})

    assert_resumes(headed, tmp_path, Raw())
    saved = load_file(tmp_path / "whole" / "model.safetensors")
    assert saved.keys() == last.keys()
    assert any(not torch.equal(saved[name], last[name]) for name in saved)


def test_a_method_that_averages_refuses_ema(headed: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="headed-toy averages weights itself; leave out ema"):
        run(headed, tmp_path / "run", ema=0.9)


def test_a_trained_run_stores_its_labels_and_a_method_with_its_own_refuses_them(tmp_path: Path) -> None:
    run("fgsm-rs", tmp_path / "run", smoothing=0.4, smoothing_kind="others", epochs=1)
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "smoothing: 0.4" in config
    assert "smoothing_kind: others" in config
    with pytest.raises(UserError, match=r"smoothing is 0\.4, but fgsm-ep has targets of its own"):
        run("fgsm-ep", tmp_path / "other", smoothing=0.4)
    assert create("fgsm-ep", LINF).smoothing.smoothing == pytest.approx(0.4)
