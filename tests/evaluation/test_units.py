"""Finished units of an evaluation: kept while it is under way, deleted when their attacks have a record."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sora.evaluation.units import NAMES, Attacked, UnitStore, remove_units

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
