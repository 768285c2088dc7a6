"""What holds for every method: one row each, on three models and in every norm it is defined for."""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from sora import methods
from sora._passes import fast_order
from sora.methods import Inputs, Method, StepOutput, create
from sora.threat import Threat

from .toys import BALLS, CLASSES, LINF, X, batchnorm, images, passes, prepared, two_layer, vector
from .waiting import no_sync


class Row(NamedTuple):
    forwards: float  # over one batch, all its updates together
    reach: float = 1.0  # of the perturbation, in multiples of eps
    hyper: Mapping[str, Any] = MappingProxyType({})
    waits: bool = False  # a step waits for the device, as documented
    boxed: bool = True  # trains on valid inputs only


ROWS = {  # a method's name, and after a space a variant of it
    "benign": Row(1, reach=0.0),
    "fgsm": Row(2),
    "free": Row(8),
    "free 3": Row(3, hyper={"replays": 3}),
    "fgsm-rs": Row(2),
    "gradalign": Row(3),
    "gradalign zero": Row(3, hyper={"start": "zero", "lambda_rule": "eps"}),
    "nuat": Row(4),
    "nuat authors": Row(4, hyper={"ramp": True, "alternate": True, "noise": "uniform"}),
    "zerograd": Row(2),
    "multigrad": Row(4),
    "multigrad serial": Row(6, hyper={"parallel": False, "copies": 5, "agree": 4}),
    "n-fgsm": Row(2, reach=3.0),
    "atas": Row(2),
    "atas adaptive": Row(2, hyper={"warmup": 0, "dtype": "float16"}),
    "atas cpu": Row(2, hyper={"storage": "cpu"}, waits=True),
    "aaer": Row(2, reach=3.0),
    "aaer rs": Row(2, hyper={"variant": "rs", "strict": True, "detach_ce": False, "ramp_epochs": 20}),
    "elle": Row(5),
    "elle adaptive": Row(5, hyper={"adaptive": True, "start": "random"}),
    "sora": Row(2, reach=3.0),
    "pgd": Row(11),
    "pgd-2": Row(3),
    "pgd-10": Row(11),
    "trades": Row(14),
    "fgsm-ckpt": Row(4),
    "fgsm-ckpt 1": Row(2, hyper={"checkpoints": 1}),
    "fgsm-ckpt modes": Row(4, hyper={"checkpoint_mode": "train"}),
    "ssat": Row(4),
    "gat": Row(4),
    "gat always": Row(4, hyper={"alternate": False, "noise": 1.0, "boost_from": 0.0}),
    "fgsm-mep": Row(2),
    "fgsm-mep half": Row(2, hyper={"dtype": "float16", "mom_of": "sign", "strict": True}),
    "fgsm-mep cpu": Row(2, hyper={"storage": "cpu", "align": True}, waits=True),
    "fgsm-ep": Row(2),
    "fgsm-bp": Row(2),
    "fgsm-rs-cs": Row(3, reach=2.0),
    "fgsm-rs-cs single": Row(2, reach=2.0, hyper={"initialize": True, "reg_single": True}),
    "fgsm-mep-cs": Row(3),
    "fgsm-mep-cs all": Row(3, hyper={"reg_single": True, "reg_multi": True, "strict": True}),
    "fgsm-uap": Row(2),
    "fgsm-uap sign": Row(2, hyper={"mom_of": "sign", "strict": True}),
    "fgsm-cuap": Row(2),
    "fgsm-fuap": Row(3),
    "fgsm-pco": Row(3, reach=1.5, boxed=False),
    "fgsm-pco cpu": Row(3, reach=1.5, boxed=False, hyper={"storage": "cpu", "dtype": "float16"}, waits=True),
    "fgsm-pco graph": Row(3, reach=1.5, hyper={"mix_graph": True, "box_mix": True, "strict": True}),
    "liet": Row(2.5),  # on a batch that updates the label information of its three classes
    "liet wide": Row(2.5, reach=3.0, hyper={"clip_ball": False, "k": 2.0, "lo": 0.0, "hi": 1.0}),
    "tdat": Row(2),
    "tdat paper": Row(3, hyper={"relax": "tanh", "mo": 0.75, "reference": "clean", "norm": "l2"}),
    "fgsm-law": Row(3),
    "fgsm-law start": Row(2, hyper={"reference": "start", "gate_add": 1, "attack_logits": True}),
    "fgsm-lass": Row(3),  # on a batch that trains the predictor
}
CASES = [(label, norm) for label in ROWS for norm in methods.info(label.split()[0]).norms]
NETS = {"two layers": two_layer, "batchnorm": batchnorm, "vector": vector}
each_row = pytest.mark.parametrize("label", ROWS)
each_case = pytest.mark.parametrize(("label", "norm"), CASES)
# Without a loss at the start of the attack, or with that loss in another mode than the update's.
NO_START_LOSS = ("benign", "free", "nuat", "atas", "trades", "fgsm-ckpt", "ssat", "gat")


def from_row(label: str, threat: Threat, x: Tensor, model: nn.Module, epochs: int = 30) -> Method:
    """A method set up as a training loop would."""
    method = create(label.split()[0], threat, **ROWS[label].hyper)
    shape = tuple(x.shape[1:])
    sizes = {"n_train": 20, "batch_size": len(x), "steps_per_epoch": 4, "classes": CLASSES}
    method.setup(shape=shape, model=model, epochs=epochs, **sizes)
    method.begin_epoch(1)
    return method


def batch_for(net: str, count: int = 6) -> tuple[nn.Module, Tensor, Tensor]:
    model = NETS[net]()
    dtype = next(model.parameters()).dtype
    if net == "vector":  # no pixel range: any real numbers
        x = torch.randn(count, 7, generator=torch.Generator().manual_seed(0), dtype=dtype) * 3
        return model, x, torch.arange(count) % CLASSES
    return model, *images(count, dtype)


def steps(method: Method, model: nn.Module, x: Tensor, y: Tensor, **known: Any) -> Iterator[StepOutput]:
    for _ in range(method.updates):
        yield method.step(model, x, y, index=torch.arange(len(x)) + 3, **known)


def finite(tensors: Any) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point())


def test_every_method_has_a_row() -> None:
    assert [label for label in ROWS if label in methods.names()] == methods.names()


@each_case
@pytest.mark.parametrize("net", NETS)
def test_one_batch_trains_inside_the_declared_set(label: str, norm: str, net: str) -> None:
    model, x, y = batch_for(net)
    threat = BALLS[norm] if net != "vector" else type(BALLS[norm])(BALLS[norm].eps, box=None)
    method = from_row(label, threat, x, model)
    for out in steps(method, model, x, y):
        assert out.loss.isfinite()
        assert 0 <= out.accuracy <= 1
        assert out.logits.shape == (len(x), CLASSES)
        assert not out.x_adv.requires_grad
        assert (threat.size(out.x_adv - x) <= ROWS[label].reach * threat.eps + 1e-6).all()
        if threat.box is not None and ROWS[label].boxed:
            assert ((out.x_adv >= 0) & (out.x_adv <= 1)).all()
        counted = "aae_share" in out.extras  # the share of abnormal examples
        assert counted == (label.split()[0] not in NO_START_LOSS)
        assert not counted or 0 <= out.extras["aae_share"] <= 1
    assert finite(p.grad for p in model.parameters())
    assert any((p.grad != 0).any() for p in model.parameters())


def states(label: str, epochs: int) -> Iterator[Tensor]:
    """What a method stores at the start of each of its first ten epochs, of so many."""
    torch.manual_seed(0)
    model, x, _ = batch_for("two layers")
    method = from_row(label, LINF, x, model, epochs)
    for epoch in range(1, 11):
        method.begin_epoch(epoch)
        yield from (tensor.clone() for tensor in method.state_dict().values())


@each_row
def test_a_method_declares_what_makes_it_depend_on_the_number_of_epochs(label: str) -> None:
    method = create(label.split()[0], LINF, **ROWS[label].hyper)
    declared = any(getattr(method.hyper, name) for name in method.info.uses_epochs)
    same = all(map(torch.equal, states(label, 10), states(label, 20)))
    assert declared == (not same)


@each_row
def test_one_image_is_a_batch_and_forwards_are_what_the_registry_says(label: str) -> None:
    model, x, y = batch_for("two layers", count=1)
    for out in steps(from_row(label, LINF, x, model), model, x, y):
        assert out.loss.isfinite()
    model, x, y = batch_for("batchnorm")
    seen = []
    fast_order(model, x)  # the passes that compare the memory orders are over
    model.register_forward_hook(lambda module, args, logits: seen.append(len(logits)))
    list(steps(from_row(label, LINF, x, model), model, x, y))
    assert sum(seen) / len(x) == ROWS[label].forwards


@each_row
def test_craft_fills_no_parameter_gradient(label: str) -> None:
    model, x, y = batch_for("two layers")
    method = from_row(label, LINF, x, model)
    method.craft(model, Inputs(x, y, method.draw(x), torch.arange(len(x))))
    assert all(p.grad is None for p in model.parameters())
    assert not x.requires_grad


class FailsAtForward(nn.Module):
    """Raises at its n-th forward."""

    def __init__(self, model: nn.Module, at: int) -> None:
        super().__init__()
        self.model, self.left = model, at

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("out of memory")
        return self.model(x)


@each_case
def test_modes_and_flags_are_restored_also_after_an_exception(label: str, norm: str) -> None:
    for at in (1, 2, 3, 5, 8, 13, 21):
        model, x, y = batch_for("batchnorm")
        model[1].eval()  # a frozen BatchNorm in a model in training
        model[0].bias.requires_grad_(False)
        failing = FailsAtForward(model, 0)
        fast_order(failing, x)  # the passes that compare the memory orders are over
        failing.left = at
        modes = [module.training for module in failing.modules()]
        flags = [p.requires_grad for p in failing.parameters()]
        method = from_row(label, BALLS[norm], x, model)
        finished = True
        try:
            list(steps(method, failing, x, y))
        except RuntimeError:
            finished = False
        assert [module.training for module in failing.modules()] == modes
        assert [p.requires_grad for p in failing.parameters()] == flags
        assert not failing._forward_hooks
        if finished:
            break
    assert finished
    assert at > 1


@each_case
def test_state_dict_carries_everything_to_the_next_batch(label: str, norm: str) -> None:
    model, x, y = batch_for("two layers")
    method, other = (from_row(label, BALLS[norm], x, model) for _ in range(2))
    for seed in range(2):
        torch.manual_seed(seed)
        list(steps(method, model, x, y))
    missing = other.load_state_dict(method.state_dict())
    assert not missing.missing_keys
    results = []
    for one in (method, other):
        torch.manual_seed(7)
        trained = copy.deepcopy(model)
        outs = list(steps(one, trained, x, y))
        results.append([*[o.x_adv for o in outs], *[p.grad for p in trained.parameters()]])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    for key, value in method.state_dict().items():
        assert torch.equal(value, other.state_dict()[key])


@each_case
def test_loss_scale_changes_the_gradients_and_nothing_else(label: str, norm: str) -> None:
    model, x, y = batch_for("two layers")
    results = []
    for scale in (None, 1024.0):
        torch.manual_seed(0)
        method, trained = from_row(label, BALLS[norm], x, model), copy.deepcopy(model)
        outs = list(steps(method, trained, x, y, loss_scale=scale))
        results.append((outs, [p.grad for p in trained.parameters()], list(method.buffers())))
    for plain, scaled in zip(results[0][0], results[1][0], strict=True):
        torch.testing.assert_close(scaled.x_adv, plain.x_adv, rtol=0, atol=1e-12)
        torch.testing.assert_close(scaled.loss, plain.loss)
        torch.testing.assert_close(scaled.pert_align, plain.pert_align, equal_nan=True)
        torch.testing.assert_close(scaled.linearity, plain.linearity, equal_nan=True)
    for plain, scaled in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(scaled, 1024 * plain)
    for plain, scaled in zip(results[0][2], results[1][2], strict=True):
        torch.testing.assert_close(scaled, plain)


@each_case
def test_all_zero_input_gradients_give_finite_steps(label: str, norm: str) -> None:
    model, x, y = batch_for("two layers")
    nn.init.zeros_(model[-1].weight)  # constant logits
    method = from_row(label, BALLS[norm], x, model)
    for out in steps(method, model, x, y):
        assert out.loss.isfinite()
        assert out.x_adv.isfinite().all()
        assert out.pert_align.isnan()
    assert finite(p.grad for p in model.parameters())
    assert finite(method.buffers())


@each_case
def test_a_model_that_returns_nan_does_not_raise_and_leaves_the_state_finite(label: str, norm: str) -> None:
    model, x, y = batch_for("two layers")
    method = from_row(label, BALLS[norm], x, model)
    list(steps(method, model, x, y))
    nn.init.constant_(model[1].bias, math.nan)  # features and logits
    for out in steps(method, model, x, y):
        assert out.loss.isnan()  # the trainer's rule for a loss that is not finite takes over
    assert finite([*method.buffers(), *method.parameters()])


@each_case
def test_a_step_never_waits_for_the_device_after_a_shapes_first(label: str, norm: str) -> None:
    model, x, y = batch_for("batchnorm")
    method = from_row(label, BALLS[norm], x, model)
    list(steps(method, model, x, y))
    waits = pytest.raises(AssertionError, match="waits") if ROWS[label].waits else nullcontext()
    with waits, no_sync():
        list(steps(method, model, x, y))


@each_case
def test_not_observing_changes_no_gradient(label: str, norm: str) -> None:
    model, x, y = batch_for("two layers")
    results = []
    for observing in (True, False):
        torch.manual_seed(0)
        method, trained = from_row(label, BALLS[norm], x, model), copy.deepcopy(model)
        method.observing = observing
        outs = list(steps(method, trained, x, y))
        results.append([p.grad for p in trained.parameters()])
    assert all(out.pert_align.isnan() for out in outs)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@each_row
def test_a_method_has_a_pert_align_if_the_registry_says_so(label: str) -> None:
    model, x, y = batch_for("two layers")
    method = from_row(label, LINF, x, model)
    values = [out.pert_align for _ in range(2) for out in steps(method, model, x, y)]
    assert any(bool(value.isfinite()) for value in values) == method.info.has_pert_align


@pytest.mark.parametrize(
    ("name", "options", "modes"),
    [  # of the passes in turn: training or evaluation
        ("atas", {}, "et"),
        ("nuat", {}, "tett"),
        ("gat", {}, "tett"),
        ("pgd-2", {}, "ttt"),
        ("pgd-2", {"attack_mode": "eval"}, "eet"),
        ("fgsm-ckpt", {}, "eeet"),
        ("fgsm-ckpt", {"attack_mode": "train", "checkpoint_mode": "eval"}, "teet"),
        ("fgsm-ckpt", {"checkpoint_mode": "train"}, "ettt"),
        ("fgsm-ckpt", {"attack_mode": "train"}, "tttt"),
        ("fgsm-cuap", {}, "tt"),
        ("liet", {}, "ett"),  # the pass over grey images
        ("fgsm-fuap", {}, "ttt"),  # the pass for the features updates BatchNorm
    ],
)
def test_each_pass_has_its_mode(name: str, options: dict[str, Any], modes: str) -> None:
    _, seen = passes(prepared(name, model=batchnorm(), **options), batchnorm(), X.float())
    assert "".join("t" if training else "e" for training, _ in seen) == modes


def test_the_output_of_a_step_is_printed_in_one_short_line() -> None:
    model, x, y = batch_for("batchnorm")
    out = create("sora", LINF).step(model, x, y)
    text = repr(out)
    assert text == str(out)
    assert text.startswith(f"StepOutput(loss={out.loss.item():.4g}, accuracy={out.accuracy.item():.4g}, ")
    assert "x_adv=float32 (6, 2, 4, 4), logits=float32 (6, 3)" in text
    assert all(f"{name}=" in text for name in out.extras)
    assert len(text.splitlines()) == 1
    assert len(text) < 500
