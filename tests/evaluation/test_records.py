"""`evaluation.json` grows, is never lost, and spares what it already knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sora.attacks import parse_all
from sora.errors import RunError
from sora.evaluation import _units, evaluate
from sora.evaluation.files import evaluate_into, read_records
from sora.threat import L2, Linf

torch.set_num_threads(1)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(75, 5))


@pytest.fixture
def pair(model: nn.Module) -> tuple[Tensor, Tensor]:
    x = torch.rand(30, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    return x, model(x).argmax(1)


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The units of work as they are done."""
    save, made = _units.UnitStore.save, []

    def noted(store: _units.UnitStore, key: str, predictions: Tensor) -> None:
        made.append(key)
        save(store, key, predictions)

    monkeypatch.setattr(_units.UnitStore, "save", noted)
    return made


def test_five_more_attacks_are_five_more(
    tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor], units: list[str]
) -> None:
    three = "clean,fgsm,pgd2"
    evaluate_into(tmp_path, model, pair, [Linf(0.05)], parse_all(three), about={"dataset": "toy"})
    units.clear()
    eight = f"{three},pgd3,pgd4,pgd5,pgd6,apgd-ce"
    (found,) = evaluate_into(tmp_path, model, pair, [Linf(0.05)], parse_all(eight))
    assert {key.split(".")[0] for key in units} == {"pgd3", "pgd4", "pgd5", "pgd6", "apgd-ce", "clean"}
    (record,) = read_records(tmp_path / "evaluation.json")
    assert list(record["accuracy"]) == list(record["attacks"]) == eight.split(",")
    assert record["attacks"]["pgd5"] | {"low": 0, "high": 0} == {
        "norm": "linf",
        "eps": 0.05,
        "steps": 5,
        "step_size": 0.0125,
        "restarts": 1,
        "n": 30,
        "low": 0,
        "high": 0,
    }
    assert record["dataset"] == "toy"
    alone = evaluate(model, pair, Linf(0.05), eight)
    assert found.record() == alone.record()
    assert found.worst_case == alone.worst_case
    assert record["worst_case"]["over"] == eight.split(",")


def test_what_is_known_is_not_done_again(
    tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor], units: list[str]
) -> None:
    threats = [Linf(0.05), L2(0.2), Linf(0)]
    first = evaluate_into(tmp_path, model, pair, threats, parse_all("clean,fgsm"))
    text = (tmp_path / "evaluation.json").read_bytes()
    units.clear()
    again = evaluate_into(tmp_path, model, pair, threats, parse_all("fgsm,clean"))
    assert units == []
    assert (tmp_path / "evaluation.json").read_bytes() == text
    assert [one.record() for one in first] == [other.record() for other in again]
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation.json"]


def test_other_weights_data_or_seeds_are_other_records(
    tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor]
) -> None:
    attacks, threats = parse_all("clean,pgd1"), [Linf(0.05)]
    evaluate_into(tmp_path, model, pair, threats, attacks)
    evaluate_into(tmp_path, model, pair, threats, attacks, seed=1)
    evaluate_into(tmp_path, model, (pair[0][:20], pair[1][:20]), threats, attacks)
    with torch.no_grad():
        model[1].bias += 0.1
    evaluate_into(tmp_path, model, pair, threats, attacks)
    records = read_records(tmp_path / "evaluation.json")
    assert [record["attacks"]["clean"]["n"] for record in records] == [30, 30, 20, 30]
    assert len({json.dumps(record["fingerprint"]) for record in records}) == 4


def test_few_classes_are_not_attacked_again(tmp_path: Path, units: list[str]) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(75, 2))
    pair = torch.rand(4, 3, 5, 5), torch.tensor([0, 1, 0, 1])
    evaluate_into(tmp_path, model, pair, [Linf(1.0)], parse_all("aa"))
    units.clear()
    (found,) = evaluate_into(tmp_path, model, pair, [Linf(1.0)], parse_all("aa"))
    assert (units, list(found.accuracy)) == ([], ["aa-reduced"])


@pytest.mark.parametrize("text", ["[{", '{"a": 1}', "[1]"])
def test_a_damaged_file_is_kept_and_named(
    tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor], text: str
) -> None:
    path = tmp_path / "evaluation.json"
    path.write_text(text)
    with pytest.raises(RunError, match="move it away"):
        evaluate_into(tmp_path, model, pair, [Linf(0.05)], parse_all("clean"))
    assert path.read_text() == text


def test_the_file_is_plain_json(tmp_path: Path, model: nn.Module, pair: tuple[Tensor, Tensor]) -> None:
    x, y = pair
    evaluate_into(tmp_path, model, (x[y != 0], y[y != 0]), [Linf(0.05)], parse_all("clean"))

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    (record,) = json.loads((tmp_path / "evaluation.json").read_text(), parse_constant=refuse)
    assert record["per_class"]["clean"][0] is None  # no example of that class
    assert sum(map(sum, record["confusion"]["clean"])) == int((y != 0).sum())
