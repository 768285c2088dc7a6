"""`evaluation.json` grows, is never lost, and nothing in it is measured again."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from sora.attacks import Attack, create, create_all
from sora.errors import RunError, UserError
from sora.evaluation import EvaluationOptions, evaluate
from sora.evaluation.accuracy import code_versions
from sora.evaluation.records import evaluate_into
from sora.evaluation.units import Attacked, AttackRunner
from sora.runs import RunFolder
from sora.threat import L2, Linf, Threat

torch.set_num_threads(1)

TEN = EvaluationOptions(batch_size=10)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(75, 5))


@pytest.fixture
def pair(model: nn.Module) -> tuple[Tensor, Tensor]:
    x = torch.rand(30, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    return x, model(x).argmax(1)


@contextmanager
def on_every_pass(model: nn.Module, do: Callable[[], None]) -> Iterator[None]:
    """Call a function after every forward pass, without a hook of the model, which would be part of it."""
    handle = register_module_forward_hook(lambda module, *_: do() if module is model else None)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def count_passes(model: nn.Module) -> Iterator[list[int]]:
    """A list that grows with every forward pass."""
    passes: list[int] = []
    with on_every_pass(model, lambda: passes.append(1)):
        yield passes


def test_only_the_missing_attacks_are_run(
    tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    three = "clean,fgsm,pgd2"
    evaluate_into(folder, model, pair, [Linf(0.05)], create_all(three), about={"dataset": "toy"})
    seven = f"{three},pgd3,pgd4,pgd5,pgd6"
    eight = f"{seven},apgd-ce"
    calls, stage = list[str](), AttackRunner._stage

    def noted(self: AttackRunner, chain: tuple[Attack, ...], positions: Tensor) -> Attacked:
        calls.append("+".join(attack.name for attack in chain))
        return stage(self, chain, positions)

    with monkeypatch.context() as patch:
        patch.setattr(AttackRunner, "_stage", noted)
        (evaluation,) = evaluate_into(folder, model, pair, [Linf(0.05)], create_all(eight))
    assert calls == ["pgd3", "pgd4", "pgd5", "pgd6", "clean", "clean+apgd-ce"]
    (record,) = folder.read_evaluations()
    assert list(record["accuracy"]) == list(record["attacks"]) == eight.split(",")
    assert record["attacks"]["pgd5"] | {"low": 0, "high": 0} == {
        "norm": "linf",
        "eps": 0.05,
        "steps": 5,
        "step_size": 0.0125,
        "restarts": 1,
        "seed": 0,
        "batch_size": 250,
        "versions": code_versions(create("pgd5"), Linf(0.05)),
        "n": 30,
        "low": 0,
        "high": 0,
    }
    assert record["dataset"] == "toy"
    alone = evaluate(model, pair, Linf(0.05), eight)
    assert evaluation.record() == alone.record()
    assert evaluation.worst_case == alone.worst_case
    assert record["worst_case"]["over"] == eight.split(",")


def test_a_complete_record_is_not_measured_again(
    tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor]
) -> None:
    threats = [Linf(0.05), L2(0.2), Linf(0)]
    first = evaluate_into(RunFolder(tmp_path), model, pair, threats, create_all("clean,fgsm"))
    text = (tmp_path / "evaluation.json").read_bytes()
    with count_passes(model) as passes:
        again = evaluate_into(RunFolder(tmp_path), model, pair, threats, create_all("fgsm,clean"))
    assert passes == []
    assert (tmp_path / "evaluation.json").read_bytes() == text
    assert [one.record() for one in first] == [other.record() for other in again]
    assert {path.name for path in tmp_path.iterdir()} == {"evaluation.json", ".evaluation.lock"}


def test_other_weights_data_or_seeds_are_other_records(
    tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor]
) -> None:
    folder, attacks, threats = RunFolder(tmp_path), create_all("clean,pgd1"), [Linf(0.05)]
    evaluate_into(folder, model, pair, threats, attacks)
    evaluate_into(folder, model, pair, threats, attacks, EvaluationOptions(seed=1))
    evaluate_into(folder, model, (pair[0][:20], pair[1][:20]), threats, attacks)
    with torch.no_grad():
        model[1].bias += 0.1
    evaluate_into(folder, model, pair, threats, attacks)
    records = folder.read_evaluations()
    assert [record["attacks"]["clean"]["n"] for record in records] == [30, 30, 20, 30]
    assert len({json.dumps(record["fingerprint"]) for record in records}) == 4


def test_the_reduced_autoattack_is_not_run_again(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(75, 2))
    pair = torch.rand(4, 3, 5, 5), torch.tensor([0, 1, 0, 1])
    evaluate_into(RunFolder(tmp_path), model, pair, [Linf(1.0)], create_all("aa"))
    with count_passes(model) as passes:
        (evaluation,) = evaluate_into(RunFolder(tmp_path), model, pair, [Linf(1.0)], create_all("aa"))
    assert (passes, list(evaluation.accuracy)) == ([], ["aa-reduced"])


@pytest.mark.parametrize("text", ["[{", '{"a": 1}', "[1]"])
def test_a_damaged_file_is_kept_and_named(
    tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor], text: str
) -> None:
    path = tmp_path / "evaluation.json"
    path.write_text(text)
    with pytest.raises(RunError, match="move it away"):
        evaluate_into(RunFolder(tmp_path), model, pair, [Linf(0.05)], create_all("clean"))
    assert path.read_text() == text


def test_the_file_is_plain_json(tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor]) -> None:
    x, y = pair
    evaluate_into(RunFolder(tmp_path), model, (x[y != 0], y[y != 0]), [Linf(0.05)], create_all("clean"))

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    (record,) = json.loads((tmp_path / "evaluation.json").read_text(), parse_constant=refuse)
    assert record["per_class"]["clean"][0] is None  # no example of that class
    assert sum(map(sum, record["confusion"]["clean"])) == int((y != 0).sum())


class Killed(BaseException):
    pass


def killed_evaluation(path: Path, model: nn.Module, pair: tuple[Tensor, Tensor]) -> RunFolder:
    """A folder with some finished units of `clean,pgd2,pgd3`."""
    folder, passes = RunFolder(path), [0]

    def kill() -> None:
        passes[0] += 1
        if passes[0] == 25:
            raise Killed

    with pytest.raises(Killed), on_every_pass(model, kill):
        evaluate_into(folder, model, pair, [Linf(0.05)], create_all("clean,pgd2,pgd3"), TEN)
    return folder


def test_a_short_evaluation_leaves_the_units_of_a_longer_one(
    tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor]
) -> None:
    """As when `--attacks clean,fgsm` runs beside, or after, a killed `--attacks clean,pgd2,pgd3`."""
    folder = killed_evaluation(tmp_path, model, pair)
    units = {path: path.read_bytes() for path in folder.evaluation_state.rglob("*.safetensors")}
    assert len(units) > 3
    evaluate_into(folder, model, pair, [Linf(0.05)], create_all("clean,fgsm"), TEN)
    assert {path: path.read_bytes() for path in units} == units
    with count_passes(model) as counted:
        (resumed,) = evaluate_into(folder, model, pair, [Linf(0.05)], create_all("clean,pgd2,pgd3"), TEN)
    assert len(counted) < 25
    assert list(resumed.accuracy) == ["clean", "fgsm", "pgd2", "pgd3"]
    assert not folder.evaluation_state.exists()
    alone = evaluate(model, pair, Linf(0.05), "clean,fgsm,pgd2,pgd3", batch_size=10)
    assert resumed.record() == alone.record()


@pytest.mark.parametrize("killed_in", ["sora.evaluation.records.remove_units", "sora._files.shutil.rmtree"])
def test_a_kill_before_the_units_are_deleted_is_made_up_for(
    tmp_path: Path,
    model: nn.Module,
    pair: tuple[Tensor, Tensor],
    monkeypatch: pytest.MonkeyPatch,
    killed_in: str,
) -> None:
    """The record is written, its units are still there or half deleted: the next evaluation deletes them."""
    folder, attacks = RunFolder(tmp_path), create_all("clean,pgd2")

    def kill(path: Path, *_: object, **__: object) -> None:
        if folder.evaluation_state in path.parents and folder.read_evaluations():
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(killed_in, kill)
        with pytest.raises(Killed):
            evaluate_into(folder, model, pair, [Linf(0.05)], attacks, TEN)
    assert list(folder.evaluation_state.rglob("*.safetensors"))
    evaluate_into(folder, model, pair, [Linf(0.05)], attacks, TEN)
    assert not folder.evaluation_state.exists()


def test_damaged_units_are_computed_again(
    tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor]
) -> None:
    """Flipped bits of a prediction, and of the header that says how large the tensors are."""
    folder = killed_evaluation(tmp_path, model, pair)
    for number, path in enumerate(sorted(folder.evaluation_state.rglob("*.safetensors"))):
        content = bytearray(path.read_bytes())
        position = content.index(b'"shape":[') + 9 if number % 2 else len(content) - 8
        content[position] ^= 1
        path.write_bytes(content)
    (resumed,) = evaluate_into(folder, model, pair, [Linf(0.05)], create_all("clean,pgd2,pgd3"), TEN)
    alone = evaluate(model, pair, Linf(0.05), "clean,pgd2,pgd3", batch_size=10)
    assert resumed.record() == alone.record()


def test_results_that_another_process_added_meanwhile_are_kept(
    tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor]
) -> None:
    folder, same = RunFolder(tmp_path), copy.deepcopy(model)

    @dataclass(frozen=True)
    class Meanwhile(Attack):
        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
            evaluate_into(folder, same, pair, [Linf(0.05)], create_all("clean,fgsm"))
            return x

    (result,) = evaluate_into(folder, model, pair, [Linf(0.05)], [Meanwhile("meanwhile")])
    (record,) = folder.read_evaluations()
    assert set(record["accuracy"]) == set(result.accuracy) == {"clean", "fgsm", "meanwhile"}


def test_adding_an_attack_does_not_rewrite_the_versions_of_others(
    tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    evaluate_into(folder, model, pair, [Linf(0.05)], create_all("clean"))
    monkeypatch.setattr("sora.evaluation.accuracy.code_versions", lambda *_: {"torch": "99"})
    evaluate_into(folder, model, pair, [Linf(0.05)], create_all("clean,fgsm"))
    (record,) = folder.read_evaluations()
    assert record["attacks"]["fgsm"]["versions"] == {"torch": "99"}
    assert record["attacks"]["clean"]["versions"] == code_versions(create("clean"), Linf(0.05))
    assert (record["attacks"]["fgsm"]["seed"], record["attacks"]["fgsm"]["batch_size"]) == (0, 250)


def test_predictions_of_many_classes_are_stored_whole(tmp_path: Path) -> None:
    folder, many = RunFolder(tmp_path), 70_000
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, many))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.arange(many))
    pair = torch.rand(2, 3, 1, 1), torch.tensor([many - 1, 0])
    for _ in range(2):  # the second time from the record
        (evaluation,) = evaluate_into(folder, model, pair, [Linf(0.1)], create_all("clean"))
        assert evaluation.predictions["clean"].tolist() == [many - 1] * 2


def own_attack(folder: Path, text: str) -> Attack:
    """The attack of a user's file; the file is written, then imported."""
    path = folder / "own_attack.py"
    path.write_text(f"""from dataclasses import dataclass
from sora.attacks import Attack
@dataclass(frozen=True)
class Own(Attack):
    by: float = 0.0
    def __call__(self, model, x, y, threat, seed=0):
        return {text}
""")
    spec = importlib.util.spec_from_file_location("own_attack", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["own_attack"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    attack: Attack = module.Own("own")
    return attack


def test_an_edited_attack_is_run_again(
    tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setitem(sys.modules, "own_attack", sys)
    folder, threats = RunFolder(tmp_path / "run"), [Linf(0.2)]
    weak = own_attack(tmp_path, "x")
    (first,) = evaluate_into(folder, model, pair, threats, [weak])
    assert first.accuracy["own"] == 1.0
    with count_passes(model) as passes:
        evaluate_into(folder, model, pair, threats, [weak])
    assert passes == []
    strong = own_attack(tmp_path, "__import__('sora').attacks.fgsm(model, x, y, threat)")
    (second,) = evaluate_into(folder, model, pair, threats, [strong])
    assert second.accuracy["own"] < 1.0
    with count_passes(model) as passes:  # another value of a field
        evaluate_into(folder, model, pair, threats, [replace(strong, by=1.0)])
    assert passes


def test_units_of_an_edited_attack_are_not_used(
    tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setitem(sys.modules, "own_attack", sys)
    evaluate(model, pair, Linf(0.2), [own_attack(tmp_path, "x")], state=tmp_path / "units")
    strong = own_attack(tmp_path, "__import__('sora').attacks.fgsm(model, x, y, threat)")
    assert evaluate(model, pair, Linf(0.2), [strong], state=tmp_path / "units").accuracy["own"] < 1.0


def test_all_threats_are_checked_before_the_first_is_run(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 4))
    pair = torch.rand(4, 1, 12, 12), torch.tensor([0, 1, 2, 3])
    with count_passes(model) as passes, pytest.raises(UserError, match="12x12 pixels in l2"):
        evaluate_into(RunFolder(tmp_path), model, pair, [Linf(0.1), L2(0.5)], create_all("clean,aa"))
    assert passes == []
