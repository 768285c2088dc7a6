"""`evaluation.json` grows, is never lost, nothing in it is measured again; finished units outlive a kill."""

import copy
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
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
from sora.evaluation import Evaluation, EvaluationOptions, evaluate, records
from sora.evaluation.accuracy import code_versions
from sora.evaluation.records import evaluate_into
from sora.evaluation.units import NAMES, Attacked, AttackRunner, UnitStore, remove_units
from sora.runs import RunFolder
from sora.threat import L2, Linf, Threat

torch.set_num_threads(1)

Pair = tuple[Tensor, Tensor]
TEN = EvaluationOptions(batch_size=10)
Into = Callable[..., list[Evaluation]]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(75, 5))


@pytest.fixture
def pair(model: nn.Module) -> Pair:
    x = torch.rand(30, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    return x, model(x).argmax(1)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture
def into(folder: RunFolder, model: nn.Module, pair: Pair) -> Into:
    """Evaluate the model into the folder."""

    def call(
        attacks: str | list[Attack],
        threats: Sequence[Threat] = (Linf(0.05),),
        options: EvaluationOptions | None = None,
        data: Pair | None = None,
    ) -> list[Evaluation]:
        about = {"dataset": "toy"}
        return evaluate_into(folder, model, data or pair, threats, create_all(attacks), options, about)

    return call


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


def test_only_the_missing_attacks_are_run(folder, into, model, pair, monkeypatch) -> None:
    into("clean,fgsm,pgd2")
    names = "clean,fgsm,pgd2,pgd3,pgd5,apgd-ce"
    calls, stage = list[str](), AttackRunner._stage

    def noted(self: AttackRunner, chain: tuple[Attack, ...], positions: Tensor) -> Attacked:
        calls.append("+".join(attack.name for attack in chain))
        return stage(self, chain, positions)

    with monkeypatch.context() as patch:
        patch.setattr(AttackRunner, "_stage", noted)
        (evaluation,) = into(names)
    assert calls == ["pgd3", "pgd5", "clean", "clean+apgd-ce"]
    (record,) = folder.read_evaluations()
    assert list(record["accuracy"]) == list(record["attacks"]) == names.split(",")
    settings = {
        "norm": "linf",
        "eps": 0.05,
        "steps": 5,
        "step_size": 0.0125,
        "restarts": 1,
        "seed": 0,
        "start": "random",
    }
    versions = code_versions(create("pgd5"), Linf(0.05))
    interval = {key: record["attacks"]["pgd5"][key] for key in ("low", "high")}
    expected = {**settings, "batch_size": 250, "versions": versions, "n": 30, **interval}
    assert record["attacks"]["pgd5"] == expected
    assert record["dataset"] == "toy"
    alone = evaluate(model, pair, Linf(0.05), names)
    assert evaluation.record() == alone.record()
    assert evaluation.worst_case == alone.worst_case
    assert record["worst_case"]["over"] == names.split(",")


def test_a_complete_record_is_not_measured_again(folder, into: Into, model: nn.Module, monkeypatch) -> None:
    threats, hashed, hash_inputs = [Linf(0.05), L2(0.2), Linf(0)], list[str](), records.hash_inputs
    monkeypatch.setattr(records, "hash_inputs", lambda *args: hashed.append("") or hash_inputs(*args))
    first = into("clean,fgsm", threats)
    assert len(hashed) == 1  # weights and images once, whatever the number of radii
    text = folder.evaluations.read_bytes()
    with count_passes(model) as passes:
        again = into("fgsm,clean", threats)
    assert passes == []
    assert folder.evaluations.read_bytes() == text
    assert [one.record() for one in first] == [other.record() for other in again]
    assert {path.name for path in folder.path.iterdir()} == {"evaluation.json", ".evaluation.lock"}


def test_other_weights_data_or_seeds_are_other_records(folder, into, model, pair) -> None:
    into("clean,pgd1")
    into("clean,pgd1", options=EvaluationOptions(seed=1))
    into("clean,pgd1", data=(pair[0][:20], pair[1][:20]))
    with torch.no_grad():
        model[1].bias += 0.1
    into("clean,pgd1")
    records = folder.read_evaluations()
    assert [record["attacks"]["clean"]["n"] for record in records] == [30, 30, 20, 30]
    assert len({json.dumps(record["fingerprint"]) for record in records}) == 4


@pytest.mark.usefixtures("short_autoattack")
def test_the_reduced_autoattack_is_not_run_again(folder: RunFolder) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(75, 2))
    arguments = folder, model, (torch.rand(4, 3, 5, 5), torch.tensor([0, 1, 0, 1])), [Linf(1.0)]
    evaluate_into(*arguments, create_all("aa"))
    with count_passes(model) as passes:
        (evaluation,) = evaluate_into(*arguments, create_all("aa"))
    assert (passes, list(evaluation.accuracy)) == ([], ["aa-reduced"])


@pytest.mark.parametrize("text", ["[{", '{"a": 1}', "[1]"])
def test_a_damaged_file_is_kept_and_named(folder: RunFolder, into: Into, text: str) -> None:
    folder.path.mkdir()
    folder.evaluations.write_text(text)
    with pytest.raises(RunError, match="move it away"):
        into("clean")
    assert folder.evaluations.read_text() == text


def test_the_file_is_plain_json(folder: RunFolder, into: Into, pair: Pair) -> None:
    x, y = pair
    into("clean", data=(x[y != 0], y[y != 0]))

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    (record,) = json.loads(folder.evaluations.read_text(), parse_constant=refuse)
    assert record["per_class"]["clean"][0] is None  # no example of that class
    assert sum(map(sum, record["confusion"]["clean"])) == int((y != 0).sum())


def test_predictions_of_many_classes_are_stored_whole(folder: RunFolder) -> None:
    many = 70_000
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, many))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.arange(many))
    pair = torch.rand(2, 3, 1, 1), torch.tensor([many - 1, 0])
    for _ in range(2):  # the second time from the record
        (evaluation,) = evaluate_into(folder, model, pair, [Linf(0.1)], create_all("clean"))
        assert evaluation.predictions["clean"].tolist() == [many - 1] * 2


class Killed(BaseException):
    pass


def kill_evaluation(folder: RunFolder, into: Into, model: nn.Module) -> dict[Path, bytes]:
    """The units that a killed evaluation of `clean,pgd2,pgd3` has finished."""
    passes = []

    def kill() -> None:
        passes.append(1)
        if len(passes) == 25:
            raise Killed

    with pytest.raises(Killed), on_every_pass(model, kill):
        into("clean,pgd2,pgd3", options=TEN)
    return {path: path.read_bytes() for path in sorted(folder.evaluation_state.rglob("*.safetensors"))}


def test_a_short_evaluation_leaves_the_units_of_a_longer_one(folder, into, model, pair) -> None:
    """As when `--attacks clean,fgsm` runs beside, or after, a killed `--attacks clean,pgd2,pgd3`."""
    units = kill_evaluation(folder, into, model)
    assert len(units) > 3
    into("clean,fgsm", options=TEN)
    assert {path: path.read_bytes() for path in units} == units
    with count_passes(model) as counted:
        (resumed,) = into("clean,pgd2,pgd3", options=TEN)
    assert len(counted) < 25
    assert list(resumed.accuracy) == ["clean", "fgsm", "pgd2", "pgd3"]
    assert not folder.evaluation_state.exists()
    alone = evaluate(model, pair, Linf(0.05), "clean,fgsm,pgd2,pgd3", batch_size=10)
    assert resumed.record() == alone.record()


@pytest.mark.parametrize("killed_in", ["sora.evaluation.records.remove_units", "sora._files.shutil.rmtree"])
def test_a_kill_before_the_units_are_deleted_is_made_up_for(folder, into, monkeypatch, killed_in) -> None:
    """The record is written, its units are still there or half deleted: the next evaluation deletes them."""

    def kill(path: Path, *_: object, **__: object) -> None:
        if folder.evaluation_state in path.parents and folder.read_evaluations():
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(killed_in, kill)
        with pytest.raises(Killed):
            into("clean,pgd2", options=TEN)
    assert list(folder.evaluation_state.rglob("*.safetensors"))
    into("clean,pgd2", options=TEN)
    assert not folder.evaluation_state.exists()


def test_damaged_units_are_computed_again(folder, into: Into, model: nn.Module, pair: Pair) -> None:
    """Flipped bits of a prediction, and of the header that says how large the tensors are."""
    for number, (path, unit) in enumerate(kill_evaluation(folder, into, model).items()):
        content = bytearray(unit)
        position = content.index(b'"shape":[') + 9 if number % 2 else len(content) - 8
        content[position] ^= 1
        path.write_bytes(content)
    (resumed,) = into("clean,pgd2,pgd3", options=TEN)
    alone = evaluate(model, pair, Linf(0.05), "clean,pgd2,pgd3", batch_size=10)
    assert resumed.record() == alone.record()


def stored(folder: Path, *attacks: str) -> Path:
    """The file of names beside a unit of these attacks."""
    UnitStore(folder, attacks).save("unit", Attacked(torch.tensor([1, 0, 2])))
    (names,) = [path for path in folder.glob(f"*/{NAMES}") if path.read_text() == "\n".join(attacks)]
    return names


@pytest.mark.parametrize("content", [b"fgsn\npgd10", b"\xf0\x0a", b""])
def test_units_whose_names_are_damaged_are_deleted_and_others_stay(content: bytes, tmp_path: Path) -> None:
    damaged, other = stored(tmp_path / "units", "fgsm", "pgd10"), stored(tmp_path / "units", "aa")
    damaged.write_bytes(content)
    remove_units(tmp_path / "units", ["fgsm"])
    assert not damaged.parent.exists()
    assert other.exists()


@dataclass(frozen=True)
class Ensemble(Attack):
    """Attacks in turn, each on what the ones before it left."""

    members: tuple[Attack, ...] = ()

    @property
    def parts(self) -> tuple[Attack, ...]:
        return self.members

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        raise NotImplementedError


def test_an_ensemble_of_plain_attacks_does_not_share_their_units(tmp_path, model, pair) -> None:
    """The plain attack runs on all images, the ensemble's part on the correctly classified ones."""
    x, y = pair
    y[::3] = (y[::3] + 1) % 5  # every third is misclassified
    ensemble = Ensemble("both", tuple(create_all("fgsm,pgd2")))
    result = evaluate(model, (x, y), Linf(0.02), [*create_all("fgsm"), ensemble], state=tmp_path)
    alone = evaluate(model, (x, y), Linf(0.02), [ensemble])
    assert result.predictions["both"].equal(alone.predictions["both"])
    assert result.accuracy["both"] <= result.accuracy["fgsm"] < 2 / 3


@dataclass(frozen=True)
class Tenth(Attack):
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
        return create("fgsm")(model, x, y, threat.scaled(0.1), seed)


def test_what_each_part_broke_is_counted(model: nn.Module, pair: Pair) -> None:
    in_turn = Ensemble("in-turn", (Tenth("tenth"), create("pgd5")))
    evaluation = evaluate(model, pair, Linf(0.05), ["clean", in_turn])
    broken = evaluation.attacks["in-turn"]["broken"]
    assert list(broken) == ["tenth", "pgd5"]
    assert min(broken.values()) > 0
    assert sum(broken.values()) == 30 - int(evaluation.robust["in-turn"].sum())


def test_results_that_another_process_added_meanwhile_are_kept(folder, into, model, pair) -> None:
    same = copy.deepcopy(model)

    @dataclass(frozen=True)
    class Meanwhile(Attack):
        def __call__(self, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, seed: int = 0) -> Tensor:
            evaluate_into(folder, same, pair, [Linf(0.05)], create_all("clean,fgsm"))
            return x

    (result,) = into([Meanwhile("meanwhile")])
    (record,) = folder.read_evaluations()
    assert set(record["accuracy"]) == set(result.accuracy) == {"clean", "fgsm", "meanwhile"}


def test_adding_an_attack_does_not_rewrite_the_versions_of_others(folder, into: Into, monkeypatch) -> None:
    into("clean")
    monkeypatch.setattr("sora.evaluation.accuracy.code_versions", lambda *_: {"torch": "99"})
    into("clean,fgsm")
    (record,) = folder.read_evaluations()
    assert record["attacks"]["fgsm"]["versions"] == {"torch": "99"}
    assert record["attacks"]["clean"]["versions"] == code_versions(create("clean"), Linf(0.05))
    assert (record["attacks"]["fgsm"]["seed"], record["attacks"]["fgsm"]["batch_size"]) == (0, 250)


WEAK, STRONG = "x", "__import__('sora').attacks.fgsm(model, x, y, threat)"


def own_attack(folder: Path, text: str, patch: pytest.MonkeyPatch) -> Attack:
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
    patch.setattr(sys, "dont_write_bytecode", True)
    spec = importlib.util.spec_from_file_location("own_attack", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, "own_attack", module)
    spec.loader.exec_module(module)
    attack: Attack = module.Own("own")
    return attack


def test_an_edited_attack_is_run_again(tmp_path: Path, into: Into, model: nn.Module, monkeypatch) -> None:
    weak, threats = own_attack(tmp_path, WEAK, monkeypatch), [Linf(0.2)]
    (first,) = into([weak], threats)
    assert first.accuracy["own"] == 1.0
    with count_passes(model) as passes:
        into([weak], threats)
    assert passes == []
    strong = own_attack(tmp_path, STRONG, monkeypatch)
    (second,) = into([strong], threats)
    assert second.accuracy["own"] < 1.0
    with count_passes(model) as passes:  # another value of a field
        into([replace(strong, by=1.0)], threats)
    assert passes


def test_units_of_an_edited_attack_are_not_used(tmp_path, model: nn.Module, pair: Pair, monkeypatch) -> None:
    for text, robust in ((WEAK, True), (STRONG, False)):
        attack = own_attack(tmp_path, text, monkeypatch)
        accuracy = evaluate(model, pair, Linf(0.2), [attack], state=tmp_path / "units").accuracy
        assert (accuracy["own"] == 1.0) == robust


def test_all_threats_are_checked_before_the_first_is_run(folder: RunFolder) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 4))
    pair = torch.rand(4, 1, 12, 12), torch.tensor([0, 1, 2, 3])
    with count_passes(model) as passes, pytest.raises(UserError, match="12x12 pixels in l2"):
        evaluate_into(folder, model, pair, [Linf(0.1), L2(0.5)], create_all("clean,aa"))
    assert passes == []
