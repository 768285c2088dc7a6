"""docs/probes.md names every probe and metric, and the numbers of images that the help gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sora import metrics, probes

PAGE = (Path(__file__).parents[2] / "docs" / "probes.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", probes.names())
def test_a_probe_has_a_row_and_a_section(name: str) -> None:
    [row] = re.findall(rf"^\| \[`{name}`\]\(#{name}\) \|.*$", PAGE, flags=re.MULTILINE)
    assert row.endswith("| model |" if probes.info(name).images else "| logs |")
    assert f"\n## `{name}`\n" in PAGE


def test_the_default_of_limit_is_that_of_each_probe() -> None:
    [row] = re.findall(r"^\| `--limit N` \|.*$", PAGE, flags=re.MULTILINE)
    parts = re.findall(r"(\d+) for ((?:`[\w-]+`(?:, | and )?)+)", row)
    described = {name: int(images) for images, names in parts for name in re.findall(r"`([\w-]+)`", names)}
    measured = {name: probes.info(name).images for name in probes.names() if probes.info(name).images}
    assert described == measured


@pytest.mark.parametrize("name", metrics.names())
def test_a_metric_has_a_row(name: str) -> None:
    assert f"\n| `{name}` |" in PAGE
