"""docs/run-folder.md describes every file of a real run and every key in them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sora import metrics
from sora.cli import main
from sora.runs import LOGS

PAGE = (Path(__file__).parents[2] / "docs" / "run-folder.md").read_text(encoding="utf-8")
TINY = (
    "--dataset digits --batch-size 32 --width 4 --set model.stages=1 --limit-train 64 --limit-test 40"
    " --holdout 20 --threads 1 --log-every 5 --quiet"
)
# FGSM fails from the start on digits: an alarm at step 41 and a return.
ALARMED = (
    "--method fgsm --guard rollback --epochs 22 --eval-every 11 --monitor gradalign,pgd --monitor-every 10"
    " --keep best-robust"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> list[Path]:
    """A run with alarms, monitors, evaluations and a card, and one of SORA, which logs more numbers."""
    folder = tmp_path_factory.mktemp("runs") / "alarmed"
    assert main(["train", *TINY.split(), *ALARMED.split(), "--out", str(folder)]) == 0
    evaluation = ["--attacks", "clean,pgd2", "--card", "--threads", "1", "--limit", "20"]
    assert main(["evaluate", str(folder), *evaluation]) == 0
    return [folder, trained / "whole"]


def described(section: str) -> list[str]:
    """The keys in the first column of a section's tables."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", text, flags=re.MULTILINE)
    return [key for row in rows for key in re.findall(r"`([^`]+)`", row)]


def keys(value: Any, prefix: str = "") -> Iterator[str]:
    """All keys of nested tables, joined by dots."""
    if isinstance(value, dict):
        for key, inner in value.items():
            # A name may itself have dots, e.g. `set.model.stages`.
            yield from keys(inner, f"{prefix}.{str(key).replace('.', '-')}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for item in value:
            yield from keys(item, prefix)
    elif prefix:
        yield prefix


def is_described(key: str, patterns: list[str]) -> bool:
    """Whether a pattern fits: capitals stand for any name, and at the end for a table of any depth."""
    names = ((re.sub(r"[A-Z]+", r"[^.]+", re.escape(each)), each.endswith("NAME")) for each in patterns)
    return any(re.fullmatch(regex + (r"(\..*)?" if deeper else ""), key) for regex, deeper in names)


@pytest.mark.parametrize("name", [*LOGS, "summary", "model", "evaluation", "model_card"])
def test_every_key_of_a_log_or_result_is_described(name: str, runs: list[Path]) -> None:
    file = f"{name}.jsonl" if name in LOGS else f"{name}.json"
    texts = [(run / file).read_text() for run in (runs if name in LOGS else runs[:1])]
    found = [json.loads(part) for text in texts for part in (text.splitlines() if name in LOGS else [text])]
    assert found
    patterns = [*described(f"`{file}`"), *described("Keys of several files")]
    if name == "monitors":
        patterns = [*(pattern for pattern in patterns if pattern != "METRIC"), *metrics.names()]
    # A table that is null in one line is described by its keys.
    parents = {pattern.rpartition(".")[0] for pattern in patterns}
    assert [key for key in keys(found) if not is_described(key, [*patterns, *parents])] == []


def test_every_block_of_the_settings_and_every_file_is_described(runs: list[Path]) -> None:
    section = PAGE.partition("\n## `config.yaml`\n")[2].partition("\n## ")[0]
    content = yaml.safe_load((runs[0] / "config.yaml").read_text())
    assert [block for block in content if f"`{block}" not in section] == []
    assert [key for key in keys({"absolute": content["absolute"]}) if f"`{key}`" not in section] == []
    table = PAGE.partition("\n## ")[0]
    listed = set(re.findall(r"`([\w.-]+?)/?`", table))
    assert [path.name for run in runs for path in run.iterdir() if path.name not in listed] == []
