"""`sora evaluate --trust`: printed, stored once, on the card and in JSON."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from sora.cli import main
from sora.evaluation.records import with_later_results
from sora.runs import RunFolder

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "a"
    flags = "--dataset digits --method benign --epochs 1 --batch-size 250 --width 4 --limit-test 40"
    assert (
        main(["train", *flags.split(), "--holdout", "0", "--threads", "1", "--quiet", "--out", str(folder)])
        == 0
    )
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def evaluate(*arguments: object) -> int:
    return main(["evaluate", *map(str, arguments), "--quiet"])


def outcomes(record: dict[str, Any]) -> dict[str, str]:
    return {finding["test"]: finding["outcome"] for finding in record["trust"]}


def test_tests_are_printed_and_stored(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(copy, "--trust", "--card") == 0
    printed = capsys.readouterr().out
    for test in ("evaluation mode", "repeated pass", "other batch", "zero gradients", "second model"):
        assert test in printed
    (record,) = json.loads((copy / "evaluation.json").read_text())
    assert outcomes(record)["repeated pass"] == "passed"
    assert outcomes(record)["second model"] == "not applicable"
    card = json.loads((copy / "model_card.json").read_text())
    assert card["evaluations"][0]["trust"] == record["trust"]
    assert "| repeated pass | passed |" in (copy / "model_card.md").read_text()


def test_json_has_the_tests_and_repeats_them_exactly(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = []
    for _ in range(2):
        capsys.readouterr()
        assert evaluate(copy, "--trust", "--json") == 0
        results.append(json.loads(capsys.readouterr().out)[0]["trust"])
        (copy / "evaluation.json").unlink()
    assert results[0] == results[1]


def test_a_second_model_is_tried(copy: Path, run: Path) -> None:
    assert evaluate(copy, "--trust") == 0
    assert evaluate(copy, "--trust", "--trust-source", run) == 0
    (record,) = json.loads((copy / "evaluation.json").read_text())
    second = next(finding for finding in record["trust"] if finding["test"] == "second model")
    assert "no second model" not in second["text"]


def test_a_failed_test_changes_the_verdict_of_the_run(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(copy, "--trust") == 0
    folder = RunFolder(copy)
    records = folder.read_evaluations()
    records[0]["trust"][3] |= {"outcome": "failed", "advice": "remove the rounding"}
    folder.write_evaluations(records)
    capsys.readouterr()
    assert evaluate(copy, "--attacks", "clean,fgsm,pgd10,pgd20") == 0  # merged with the stored tests
    printed = " ".join(capsys.readouterr().out.split())
    assert "linf 0.15: suspect" in printed
    assert "failed: zero gradients: remove the rounding" in printed
    assert with_later_results(folder)["co"]["verdict"] == "suspect"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--trust-source", "elsewhere"], "--trust-source requires --trust"),
        (["--trust", "--trust-source", "elsewhere"], "elsewhere"),
    ],
)
def test_wrong_flags_get_one_line(
    flags: list[str], message: str, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(copy, *flags) in (1, 2)
    assert message in capsys.readouterr().err
