"""`evaluate`: repeatable, isolated, resumable, the same for one process and for two."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, distributed, multiprocessing, nn

from sora import attacks, evaluate
from sora.data import ImageSet
from sora.errors import UserError
from sora.evaluation import _progress, _units
from sora.evaluation._progress import Meter
from sora.threat import L2, Linf, Threat

torch.set_num_threads(1)

auto = importlib.import_module("sora.attacks.autoattack")  # the package binds this name to the function
build, QUERIES = auto.build, 50
ATTACKS = "clean,fgsm,pgd5,pgd5x3"


def net(seed: int, classes: int = 5) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(108, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, classes)
    )


def data(model: nn.Module, n: int = 70, seed: int = 0, noisy: bool = True) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, 6, 6, generator=generator)
    model.eval()
    y = model(x).argmax(1)
    if noisy:
        y[::7] = (y[::7] + 1) % 2
    return x, y


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def short(part: auto.AutoPart, *arguments: Any) -> Any:
    attack = build(part, *arguments)
    if part.name == "square":
        attack.n_queries = QUERIES
    return attack


@pytest.fixture
def short_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """5000 queries a batch are Square's, and too many for a test of what is done with them."""
    monkeypatch.setattr(auto, "build", short)


@pytest.mark.parametrize("threat", [Linf(0.05), L2(0.4)], ids=["linf", "l2"])
def test_numbers_are_the_same_again_and_in_every_form_of_data(threat: Threat) -> None:
    model = net(0)
    x, y = data(model)
    x = (x * 255).round() / 255
    first = evaluate(model, (x, y), threat, ATTACKS, batch_size=32)
    torch.rand(5)  # the caller's stream plays no part
    batches = [(x[:10], y[:10]), (x[10:], y[10:])]
    images = ImageSet((x * 255).round().byte().permute(0, 2, 3, 1).contiguous(), y)
    turned = (x.to(memory_format=torch.channels_last), y)
    for other in (batches, images, turned):
        again = evaluate(model, other, threat, ATTACKS, batch_size=32)
        assert again.record() == first.record()
        assert all(
            torch.equal(again.predictions[name], first.predictions[name]) for name in first.predictions
        )
    assert first.accuracy["pgd5x3"] <= first.accuracy["pgd5"] <= first.accuracy["clean"]
    one, two = (attacks.create("pgd1")(model, x, y, threat, seed) for seed in (0, 1))
    assert not torch.equal(one, two)


def test_nothing_of_the_caller_is_touched() -> None:
    model = net(0)
    x, y = data(model)
    model.train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    stream, kept = torch.get_rng_state(), x.clone()
    evaluate(model, (x, y), Linf(0.05), "clean,fgsm,pgd3,apgd-ce", batch_size=16)
    assert torch.equal(torch.get_rng_state(), stream)
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(x, kept)


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 99), kind=st.sampled_from([Linf, L2]))
def test_radius_zero_is_clean(seed: int, kind: type[Threat]) -> None:
    model = net(seed)
    found = evaluate(model, data(model, seed=seed), kind(0), "clean,fgsm,pgd3x2,aa", batch_size=32)
    assert len(set(found.accuracy.values())) == 1


@pytest.mark.usefixtures("short_square")
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 99))
def test_autoattack_is_no_weaker_than_pgd(seed: int) -> None:
    model = net(seed)
    found = evaluate(model, data(model, n=200, seed=seed), Linf(0.1), "pgd10,aa", batch_size=200)
    assert found.robust["aa"].sum() <= found.robust["pgd10"].sum() + 1


@pytest.mark.usefixtures("short_square")
def test_autoattack_gives_the_set_of_the_packages_own_attacks(autoattack_by_hand: Callable[..., Any]) -> None:
    """Batch by batch with the same seeds, on what the attacks before have left."""
    model = net(1)
    x, y = data(model, n=20)
    found = evaluate(model, (x, y), Linf(0.06), "clean,aa,apgd-ce", batch_size=7, seed=3)
    robust = autoattack_by_hand(model, x, y, 0.06, batch_size=7, seed=3, targets=4, queries=QUERIES)
    assert torch.equal(found.robust["clean"], robust["clean"])
    assert torch.equal(found.robust["apgd-ce"], robust["apgd-ce"])
    assert torch.equal(found.robust["aa"], robust["square"])
    assert 0 < int(robust["square"].sum()) < int(robust["apgd-ce"].sum())


@pytest.mark.usefixtures("short_square")
@pytest.mark.parametrize("classes", [2, 3])
def test_few_classes_are_labelled(classes: int) -> None:
    model = net(0, classes)
    found = evaluate(model, data(model, n=6), Linf(0.3), "clean,aa", batch_size=6)
    assert list(found.accuracy) == ["clean", "aa-reduced"]
    assert found.attacks["aa-reduced"]["parts"] == ["apgd-ce", "fab-t", "square"]


class Killed(BaseException):
    pass


@pytest.mark.usefixtures("short_square")
def test_interrupted_after_any_unit_it_ends_with_the_same_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = net(1)
    pair = data(model, n=24)
    whole = evaluate(model, pair, Linf(0.1), "pgd3,aa", batch_size=8)
    save, made = _units.UnitStore.save, []

    def counting(store: _units.UnitStore, key: str, predictions: Tensor) -> None:
        save(store, key, predictions)
        made.append(key)
        if len(made) % 2 == 0:
            raise Killed

    monkeypatch.setattr(_units.UnitStore, "save", counting)
    interrupted = 0
    while True:
        try:
            found = evaluate(model, pair, Linf(0.1), "pgd3,aa", batch_size=8, state=tmp_path)
            break
        except Killed:
            interrupted += 1
    assert interrupted > 3
    assert len(made) == len(set(made)), "a unit was done twice"
    assert same(found.predictions, whole.predictions)


def test_a_half_written_or_foreign_state_is_not_used(tmp_path: Path) -> None:
    model = net(1)
    pair = data(model, n=24)
    first = evaluate(model, pair, Linf(0.1), "clean,pgd3", batch_size=8, state=tmp_path)
    for path in tmp_path.rglob("*.json"):
        path.write_text(path.read_text()[:-2])
    again = evaluate(model, pair, Linf(0.1), "clean,pgd3", batch_size=8, state=tmp_path)
    assert again.record() == first.record()
    other = evaluate(net(2), pair, Linf(0.1), "clean,pgd3", batch_size=8, state=tmp_path)
    assert other.record() == evaluate(net(2), pair, Linf(0.1), "clean,pgd3", batch_size=8).record()
    assert len(list(tmp_path.iterdir())) == 2


def _rank(number: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    auto.build = short
    distributed.init_process_group("gloo", f"file://{folder}/meet", rank=number, world_size=world)
    model = net(1)
    found = evaluate(model, data(model, n=22), Linf(0.1), "clean,pgd3,aa", batch_size=4, shard=True)
    torch.save(found.predictions, f"{folder}/{number}.pt")
    distributed.destroy_process_group()


@pytest.mark.usefixtures("short_square")
def test_two_ranks_find_what_one_finds(tmp_path: Path) -> None:
    multiprocessing.spawn(_rank, (2, str(tmp_path)), nprocs=2)
    model = net(1)
    alone = evaluate(model, data(model, n=22), Linf(0.1), "clean,pgd3,aa", batch_size=4)
    for number in (0, 1):
        found = torch.load(tmp_path / f"{number}.pt", weights_only=True)
        assert same(found, alone.predictions)


class Answers(nn.Module):
    """A model whose answer is a function of the flattened input."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(x.flatten(1)[:, :3])  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda z: z.softmax(1), "probabilities"),
        (lambda z: z / (z.sum(1, keepdim=True) * 0), "NaN"),
        (lambda z: torch.where(z > 0.5, z, torch.nan), "NaN"),
        (lambda z: z[:, 0], "expected logits of shape"),
        (lambda z: z[:, :1], "expected logits of shape"),
        (lambda z: (z, z), "tuple; expected logits"),
        (lambda z: z[:, :2], "labels run from 0 to 2, but the model has 2 classes"),
        (lambda z: z.detach(), "cannot be differentiated"),
        (lambda z: z @ torch.ones(5, 3), "does not take inputs of shape"),
    ],
)
def test_a_model_that_cannot_be_judged_is_refused(answer: object, message: str) -> None:
    x, y = torch.rand(6, 1, 2, 2), torch.arange(6) % 3
    with pytest.raises(UserError, match=message) as caught:
        evaluate(Answers(answer), (x, y), Linf(0.1))
    assert "\n" not in str(caught.value)


def test_other_mistakes_are_named() -> None:
    model = net(0)
    x, y = data(model)
    with pytest.raises(UserError, match="5 classes apart, the data has 10"):
        evaluate(model, (x, y), Linf(0.1), num_classes=10)
    with pytest.raises(UserError, match="70 inputs come with 69 labels"):
        evaluate(model, (x, y[1:]), Linf(0.1))
    with pytest.raises(UserError, match="nothing to evaluate"):
        evaluate(model, (x[:0], y[:0]), Linf(0.1))
    with pytest.raises(UserError, match="nothing to evaluate"):
        evaluate(model, [], Linf(0.1))
    with pytest.raises(UserError, match="outside the box"):
        evaluate(model, (x * 3, y), Linf(0.1))
    with pytest.raises(UserError, match="batch size 0"):
        evaluate(model, (x, y), Linf(0.1), batch_size=0)


def test_a_progress_bar_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model = net(0)
    shown = evaluate(model, data(model), Linf(0.05), "clean,pgd3,apgd-ce", batch_size=32, progress=True)
    assert (
        shown.record()
        == evaluate(model, data(model), Linf(0.05), "clean,pgd3,apgd-ce", batch_size=32).record()
    )
    assert capsys.readouterr().out == ""
    assert not model._forward_hooks


def test_the_progress_bar_moves_within_a_unit_and_ends_with_it() -> None:
    model = net(0).eval()
    with Meter(model, show=True) as meter:
        assert meter._bar is not None
        (task,) = meter._bar.tasks
        meter.plan("pgd", 100)
        meter.plan("pgd", 60)
        with meter.unit("pgd", 40):
            model(torch.rand(8, 3, 6, 6))
            assert task.completed == 8
            model(torch.rand(90, 3, 6, 6))
            assert task.completed == 40
        with meter.unit("pgd", 20):
            pass
        assert (task.completed, task.total) == (60, 60)


def test_a_log_file_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_progress, "SILENCE", -1)
    model = net(0)
    evaluate(model, data(model), Linf(0.05), "clean,fgsm", batch_size=35, progress=True)
    assert "fgsm, batch 2 of 2: 67 % done" in capsys.readouterr().err
