"""Finished units of an evaluation: kept while it is under way, deleted when their attacks have a record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sora.attacks import Attack, create_all
from sora.evaluation import evaluate
from sora.evaluation.units import NAMES, Attacked, UnitStore, remove_units
from sora.threat import Linf, Threat

UNIT = Attacked(torch.tensor([1, 0, 2]))


def stored(folder: Path, *attacks: str) -> Path:
    UnitStore(folder, attacks).save("unit", UNIT)
    (names,) = [path for path in folder.glob(f"*/{NAMES}") if path.read_text() == "\n".join(attacks)]
    return names


def test_units_stay_until_all_their_attacks_have_a_record(tmp_path: Path) -> None:
    stored(tmp_path / "units", "fgsm", "pgd10")
    remove_units(tmp_path / "units", ["fgsm"])
    loaded = UnitStore(tmp_path / "units", ["pgd10"]).load("unit", 3, with_inputs=False)
    assert loaded is not None
    assert loaded.predictions.tolist() == [1, 0, 2]
    remove_units(tmp_path / "units", ["fgsm", "pgd10", "clean"])
    assert not (tmp_path / "units").exists()


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


def test_an_ensemble_of_plain_attacks_does_not_share_their_units(tmp_path: Path) -> None:
    """The plain attack runs on all images, the ensemble's part on the correctly classified ones."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(75, 5))
    x = torch.rand(30, 3, 5, 5)
    y = model(x).argmax(1)
    y[::3] = (y[::3] + 1) % 5  # every third is misclassified
    ensemble = Ensemble("both", tuple(create_all("fgsm,pgd2")))
    result = evaluate(model, (x, y), Linf(0.02), [*create_all("fgsm"), ensemble], state=tmp_path)
    alone = evaluate(model, (x, y), Linf(0.02), [ensemble])
    assert result.predictions["both"].equal(alone.predictions["both"])
    assert result.accuracy["both"] <= result.accuracy["fgsm"] < 2 / 3
