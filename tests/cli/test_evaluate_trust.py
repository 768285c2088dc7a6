"""`sora evaluate --trust`: printed, stored once, on the card and in JSON."""

import json
from pathlib import Path
from typing import Any

from sora.evaluation.records import with_later_results
from sora.runs import RunFolder


def outcomes(record: dict[str, Any]) -> dict[str, str]:
    return {finding["test"]: finding["outcome"] for finding in record["trust"]}


def test_tests_are_printed_stored_and_repeated_exactly(sora, run, finished) -> None:
    printed = sora("evaluate", run, "--trust", "--card", "--quiet").out
    for test in ("evaluation mode", "repeated pass", "other batch", "zero gradients", "second model"):
        assert test in printed
    (record,) = json.loads((run / "evaluation.json").read_text())
    assert outcomes(record)["repeated pass"] == "passed"
    assert outcomes(record)["second model"] == "not applicable"
    card = json.loads((run / "model_card.json").read_text())
    assert card["evaluations"][0]["trust"] == record["trust"]
    assert "| repeated pass | passed |" in (run / "model_card.md").read_text()
    (run / "evaluation.json").unlink()
    (again,) = sora.json("evaluate", run, "--trust", "--quiet")
    assert again["trust"] == record["trust"]
    sora("evaluate", run, "--trust", "--trust-source", finished, "--quiet")
    (record,) = json.loads((run / "evaluation.json").read_text())
    second = next(finding for finding in record["trust"] if finding["test"] == "second model")
    assert "no second model" not in second["text"]


def test_a_failed_test_changes_the_verdict_of_the_run(sora, run: Path) -> None:
    sora("evaluate", run, "--trust", "--quiet")
    folder = RunFolder(run)
    records = folder.read_evaluations()
    records[0]["trust"][3] |= {"outcome": "failed", "advice": "remove the rounding"}
    folder.write_evaluations(records)
    # Merged with the stored tests:
    shown = sora("evaluate", run, "--attacks", "clean,fgsm,pgd10,pgd20", "--quiet").out
    printed = " ".join(shown.split())
    assert "linf 0.15: suspect" in printed
    assert "failed: zero gradients: remove the rounding" in printed
    assert with_later_results(folder)["co"]["verdict"] == "suspect"
