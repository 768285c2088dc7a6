"""What the page says about a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from sora.evaluation.scores import VERDICTS, verdict
from sora.report import sentences
from sora.report.reading import read_runs

from .toys import write_run

HALF = {"clean": 0.9, "fgsm": 0.6, "pgd10": 0.31}
LESS = {"clean": 0.9, "fgsm": 0.6, "pgd10": 0.25}
CHANCE = {"clean": 0.9, "fgsm": 0.1, "pgd10": 0.1}


@pytest.mark.parametrize(
    ("accuracy", "word", "words"),
    [
        (HALF, "robust", "under PGD-10 it keeps at least half of its FGSM accuracy"),
        (LESS, "suspect", "PGD-10 leaves less than half of its FGSM accuracy, or a masking test failed"),
        (CHANCE, "not robust", "without an attack or under PGD-10 it is no better than chance"),
    ],
)
def test_a_verdict_is_explained_by_its_rule(
    accuracy: dict[str, float], word: str, words: str, tmp_path: Path
) -> None:
    assert verdict(accuracy, 1000, chance=0.1) == word
    run = write_run(tmp_path / "a", "sora")
    summary = run.read_summary()
    run.write_summary(summary | {"accuracy": accuracy, "co": {**summary["co"], "verdict": word}})
    [record] = read_runs([run.path])
    assert words in sentences.verdict(record).text


def test_every_verdict_has_a_meaning() -> None:
    assert set(VERDICTS) <= set(sentences.MEANING)
