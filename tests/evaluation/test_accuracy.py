"""`evaluate`: repeatable, without side effects, resumable, the same for one process and for two."""

import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, distributed, multiprocessing, nn

from sora import attacks, evaluate
from sora._seeds import mix
from sora.data import ImageSet
from sora.errors import UserError
from sora.threat import L2, Linf, Threat
from tests.attacks.short import ITERATIONS, QUERIES, auto, short_build

torch.set_num_threads(1)

ATTACKS = "clean,fgsm,pgd5,pgd5x3"


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 5))


def data(model: nn.Module, n: int = 70, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, 6, 6, generator=generator)
    model.eval()
    y = model(x).argmax(1)
    y[::7] = (y[::7] + 1) % 2
    return x, y


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("threat", [Linf(0.05), L2(0.4)], ids=["linf", "l2"])
def test_results_are_repeatable_and_do_not_depend_on_the_form_of_the_data(threat: Threat) -> None:
    model = net(0)
    x, y = data(model)
    x = (x * 255).round() / 255
    first = evaluate(model, (x, y), threat, ATTACKS, batch_size=32)
    torch.rand(5)  # the global random state has no influence
    batches = [(x[:10], y[:10]), (x[10:], y[10:])]
    images = ImageSet((x * 255).round().byte().permute(0, 2, 3, 1).contiguous(), y)
    turned = (x.to(memory_format=torch.channels_last), y)
    for other in (batches, images, turned):
        again = evaluate(model, other, threat, ATTACKS, batch_size=32)
        assert again.record() == first.record()
        assert same(again.predictions, first.predictions)
    assert first.accuracy["pgd5x3"] <= first.accuracy["pgd5"] <= first.accuracy["clean"]
    one, two = (attacks.create("pgd1")(model, x, y, threat, seed) for seed in (0, 1))
    assert not torch.equal(one, two)


def test_model_inputs_and_random_state_are_left_unchanged() -> None:
    model = net(0)
    x, y = data(model)
    model.train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    stream, before = torch.get_rng_state(), x.clone()
    evaluate(model, (x, y), Linf(0.05), "clean,fgsm,pgd3,apgd-ce", batch_size=16)
    assert torch.equal(torch.get_rng_state(), stream)
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(x, before)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 99), kind=st.sampled_from([Linf, L2]))
def test_radius_zero_is_clean(seed: int, kind: type[Threat]) -> None:
    model = net(seed)
    evaluation = evaluate(model, data(model, seed=seed), kind(0), "clean,fgsm,pgd3x2,aa", batch_size=32)
    assert len(set(evaluation.accuracy.values())) == 1


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 99))
def test_autoattack_is_no_weaker_than_pgd(seed: int) -> None:
    model = net(seed)
    evaluation = evaluate(model, data(model, n=200, seed=seed), Linf(0.1), "pgd10,aa", batch_size=200)
    assert evaluation.robust["aa"].sum() <= evaluation.robust["pgd10"].sum() + 1


def by_hand(model: nn.Module, x: Tensor, y: Tensor, iterations: int, queries: int) -> dict[str, Tensor]:
    """Which examples are correctly classified before AutoAttack and after each of its parts."""
    from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
    from pyautoattack.fab_pt import FABAttack_PT
    from pyautoattack.square import SquareAttack

    model.eval().requires_grad_(False)
    common = {"eps": 0.04, "norm": "Linf", "n_restarts": 1, "device": "cpu"}
    gradient = common | {"n_iter": iterations}
    parts = {
        "apgd-ce": APGDAttack(model, loss="ce", rho=0.75, **gradient),
        "apgd-t": APGDAttack_targeted(model, rho=0.75, n_target_classes=4, **gradient),
        "fab-t": FABAttack_PT(model, targeted=True, n_target_classes=4, **gradient),
        "square": SquareAttack(model, n_queries=queries, p_init=0.8, resc_schedule=False, **common),
    }
    robust = torch.cat([model(part).argmax(1) for part in x.split(7)]) == y
    after = {"clean": robust}
    for name, attack in parts.items():
        robust = robust.clone()
        left = robust.nonzero()[:, 0]
        for number, batch in enumerate(left.split(7) if len(left) else ()):
            attack.seed = mix(3, zlib.crc32(name.encode()), number)
            robust[batch] = model(attack.perturb(x[batch], y[batch])).argmax(1) == y[batch]
        after[name] = robust
    return after


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["short", "full"])
def test_autoattack_gives_the_set_of_the_packages_own_attacks(full, request) -> None:
    """Batch by batch with the same seeds, on the examples that the previous attacks left."""
    if not full:
        request.getfixturevalue("short_autoattack")
    model = net(1)
    x, y = data(model, n=20)
    evaluation = evaluate(model, (x, y), Linf(0.04), "clean,aa,apgd-ce", batch_size=7, seed=3)
    robust = by_hand(model, x, y, *((100, 5000) if full else (ITERATIONS, QUERIES)))
    assert torch.equal(evaluation.robust["clean"], robust["clean"])
    assert torch.equal(evaluation.robust["apgd-ce"], robust["apgd-ce"])
    assert torch.equal(evaluation.robust["aa"], robust["square"])
    assert 0 < int(robust["square"].sum()) < int(robust["apgd-ce"].sum())


class Killed(BaseException):
    pass


@pytest.mark.usefixtures("short_autoattack")
def test_interrupted_at_any_pass_it_ends_with_the_same_set(tmp_path: Path) -> None:
    model = net(1)
    pair = data(model, n=12)
    whole = evaluate(model, pair, Linf(0.1), "pgd3,aa", batch_size=4)
    passes = interrupted = 0
    limit = 60

    def kill(*_: object) -> None:
        nonlocal passes
        passes += 1
        if passes >= limit:
            raise Killed

    model.register_forward_hook(kill)
    units: dict[Path, int] = {}
    while True:
        try:
            resumed = evaluate(model, pair, Linf(0.1), "pgd3,aa", batch_size=4, state=tmp_path)
            break
        except Killed:
            interrupted += 1
            done = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
            assert done.items() >= units.items(), "a finished unit was lost or done again"
            limit = 60 if len(done) > len(units) else limit * 2  # enough for the longest unit in the end
            units, passes = done, 0
    assert interrupted > 3
    assert len(units) > 3
    assert same(resumed.predictions, whole.predictions)


def test_the_incomplete_state_or_that_of_another_model_is_not_used(tmp_path: Path) -> None:
    model = net(1)
    pair = data(model, n=24)
    first = evaluate(model, pair, Linf(0.1), "clean,pgd3", batch_size=8, state=tmp_path)
    for path in tmp_path.rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-2])
    again = evaluate(model, pair, Linf(0.1), "clean,pgd3", batch_size=8, state=tmp_path)
    assert again.record() == first.record()
    other = evaluate(net(2), pair, Linf(0.1), "clean,pgd3", batch_size=8, state=tmp_path)
    assert other.record() == evaluate(net(2), pair, Linf(0.1), "clean,pgd3", batch_size=8).record()
    assert len(list(tmp_path.iterdir())) == 2


def _rank(number: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    auto.build = short_build
    distributed.init_process_group("gloo", f"file://{folder}/meet", rank=number, world_size=world)
    model = net(1)
    evaluation = evaluate(model, data(model, n=10), Linf(0.1), "clean,pgd3,aa", batch_size=4, shard=True)
    torch.save(evaluation.predictions, f"{folder}/{number}.pt")
    distributed.destroy_process_group()


@pytest.mark.usefixtures("short_autoattack")
def test_two_ranks_give_the_result_of_one(tmp_path: Path) -> None:
    multiprocessing.spawn(_rank, (2, str(tmp_path)), nprocs=2)
    model = net(1)
    alone = evaluate(model, data(model, n=10), Linf(0.1), "clean,pgd3,aa", batch_size=4)
    for number in (0, 1):
        predictions = torch.load(tmp_path / f"{number}.pt", weights_only=True)
        assert same(predictions, alone.predictions)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda x, y: (x, y), {"num_classes": 10}, "has 5 classes, the data has 10"),
        (lambda x, y: (x, y[1:]), {}, "70 inputs come with 69 labels"),
        (lambda x, y: (x[:0], y[:0]), {}, "nothing to evaluate"),
        (lambda x, y: [], {}, "nothing to evaluate"),
        (lambda x, y: (x * 3, y), {}, "outside the box"),
        (lambda x, y: (x, y), {"batch_size": 0}, "batch size 0"),
    ],
)
def test_other_mistakes_have_clear_messages(change: Any, options: dict[str, int], message: str) -> None:
    model = net(0)
    with pytest.raises(UserError, match=message):
        evaluate(model, change(*data(model)), Linf(0.1), **options)


@pytest.mark.parametrize(
    ("shape", "threat", "attack"),
    [
        ((4, 3, 12, 12), L2(0.5), "aa"),
        ((4, 3, 12, 12), L2(0.5), "square"),
        ((4, 3, 4, 4), Linf(0.1), "aa-plus"),
        ((4, 9), Linf(0.1), "apgd-ce"),
        ((4, 3, 6, 6), Linf(0.1, box=None), "aa"),
    ],
)
def test_data_that_an_attack_cannot_attack_is_noticed_before_any_attack_runs(
    shape: tuple[int, ...], threat: Threat, attack: str, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(5))
    pair = torch.rand(shape), torch.tensor([0, 1, 2, 3])
    model(pair[0])
    with pytest.raises(UserError, match="images"):
        evaluate(model, pair, threat, f"clean,{attack}", state=tmp_path)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.usefixtures("short_autoattack")
def test_a_progress_bar_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model, names = net(0), "clean,pgd3,apgd-ce"
    shown = evaluate(model, data(model), Linf(0.05), names, batch_size=32, progress=True)
    assert shown.record() == evaluate(model, data(model), Linf(0.05), names, batch_size=32).record()
    assert capsys.readouterr().out == ""
    assert not model._forward_hooks
