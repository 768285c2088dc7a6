"""The compiled step is one graph and gives the same numbers as the eager step."""

import copy

import pytest
import torch
from torch import Tensor, nn

from sora import methods
from sora.errors import UserError
from sora.methods import Crafted, Inputs, Learned, Method, compiled_step, create
from sora.methods._compile import can_compile
from sora.threat import Threat

from .toys import LINF, batchnorm, images, two_layer

pytestmark = pytest.mark.skipif(not can_compile(), reason="this torch cannot trace autograd in a graph")
CASES: list[tuple[str, float | None]] = [("fgsm-rs", 0.25), ("sora", 0.25)]
CASES += [(name, None) for name in methods.names() if methods.info(name).compilable]
NUMBERS = ("loss", "accuracy", "pert_align", "linearity", "step_size", "x_adv", "logits")


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    """Graphs of earlier tests count towards the compiler's limit of recompilations."""
    torch.compiler.reset()


def without_dropout() -> nn.Module:
    """Dropout draws random numbers of its own, which `noise` does not replace."""
    model = batchnorm()
    del model[3]
    return model


def assert_steps_agree(
    name: str, model: nn.Module, x: Tensor, y: Tensor, backend: str, scale: float | None = None
) -> None:
    """Two steps, eager and compiled, agree in numbers, accumulated gradients, buffers and state."""
    eager_model, eager, method = copy.deepcopy(model), create(name, LINF), create(name, LINF)
    step = compiled_step(method, model, backend=backend)
    for _ in range(2):
        noise = eager.draw(x)
        expected = eager.step(eager_model, x, y, noise=noise, loss_scale=scale)
        alone = noise[0] if len(noise) == 1 else noise  # may be a single tensor
        out = step(model, x, y, noise=alone, loss_scale=scale)
        for number in NUMBERS:
            torch.testing.assert_close(
                getattr(out, number), getattr(expected, number), rtol=1e-5, atol=1e-5, equal_nan=True
            )
        assert out.extras.keys() == expected.extras.keys()
    assert all(bool(p.grad.abs().max() > 0) for p in model.parameters() if p.grad.dim() > 1)
    ours = [p.grad for p in model.parameters()] + [*model.buffers(), *method.buffers()]
    theirs = [p.grad for p in eager_model.parameters()] + [*eager_model.buffers(), *eager.buffers()]
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "scale"), CASES)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_the_compiled_step_agrees_with_the_eager_one(name: str, scale: float | None, backend: str) -> None:
    x, y = images(dtype=torch.float32)
    assert_steps_agree(name, without_dropout(), x, y, backend, scale)


class Plugin(Method):
    """Uses every part of a step: a penalty with a graph, an objective, a strict gradient, a state."""

    def __init__(self, threat: Threat, hyper: methods.Hyper) -> None:
        super().__init__(threat, hyper)
        self.register_buffer("average", torch.zeros(()))

    @property
    def strict_gradient(self) -> bool:
        return True

    def draw(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.threat.random_start(x),)

    def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
        start = batch.x + batch.noise[0]
        g, logits = methods.input_gradient(model, start, batch.y, batch.loss_scale)
        with torch.enable_grad():
            penalty = 100 * model(start).square().mean()
        x_adv = self.threat.step(start, g, self.threat.eps)
        return Crafted(x_adv, g, logits=logits, penalty=penalty, step_size=self.threat.eps)

    def objective(self, model: nn.Module, logits: Tensor, batch: Inputs, crafted: Crafted) -> Tensor:
        return 0.5 * methods.cross_entropy(logits, batch.y) + logits.abs().mean()

    def update_state(self, batch: Inputs, crafted: Crafted, learned: Learned) -> dict[str, Tensor]:
        self.average.lerp_(learned.loss, 0.1)
        return {"average": self.average.clone()}


@pytest.fixture
def plugin() -> str:
    methods.register("plugin", "all parts of a step", compilable=True)(Plugin)
    return "plugin"


@pytest.mark.parametrize(("backend", "scale"), [("eager", None), ("aot_eager", 0.25)])
def test_a_method_with_penalty_objective_and_strict_gradient_compiles_to_the_same(
    plugin: str, scale: float | None, backend: str
) -> None:
    x, y = images(dtype=torch.float32)
    assert_steps_agree(plugin, two_layer(torch.float32), x, y, backend, scale)


@pytest.mark.parametrize("name", ["fgsm-rs", "sora"])
def test_the_input_gradient_is_left_out_only_if_nobody_uses_it(name: str) -> None:
    model, (x, y) = two_layer(torch.float32), images(dtype=torch.float32)
    method = create(name, LINF)
    method.observing = False
    step = compiled_step(method, model, backend="eager")
    assert step(model, x, y).pert_align.isnan()
    assert all((p.grad != 0).any() for p in model.parameters())


def test_a_parameter_that_the_loss_does_not_use_gets_no_gradient() -> None:
    model, (x, y) = two_layer(torch.float32), images(dtype=torch.float32)
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    compiled_step(create("n-fgsm", LINF), model, backend="eager")(model, x, y)
    assert model.unused.grad is None


def test_only_a_method_that_says_so_compiles_and_labels_are_checked_before_the_first_graph() -> None:
    with pytest.raises(UserError, match="works with fgsm-rs, n-fgsm, sora"):
        compiled_step(create("pgd-2", LINF), batchnorm())
    x, y = images(dtype=torch.float32)
    step = compiled_step(create("sora", LINF), batchnorm(), backend="aot_eager")
    with pytest.raises(UserError, match="labels run from"):
        step(None, x, y + 1)
