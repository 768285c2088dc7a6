"""The flags of every verb are those of `flags.yaml`: a new flag is a decision, made by adding it there."""

import re
from pathlib import Path

import pytest
import yaml

from sora.cli import VERBS

FLAGS = yaml.safe_load((Path(__file__).parent / "flags.yaml").read_text())


def test_every_verb_has_an_entry() -> None:
    assert {entry.split()[0] for entry in FLAGS} == {verb for verb in VERBS if verb != "figure"}


@pytest.mark.parametrize("verb", [*FLAGS, "figure"])
def test_flags_are_frozen_and_the_help_names_kinds_of_values_not_types(verb, sora, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", sora(*verb.split(), "--help").out)
    rows = re.findall(r"^\W{2,4}(--[a-z][\w-]*(?:, --[\w-]+)?)", shown, re.MULTILINE)
    offered = [flag for row in rows for flag in row.split(", ")]
    assert sorted(offered) == sorted(FLAGS["probe" if verb == "figure" else verb].split())
    assert f"sora {verb}" in shown
    assert "--debug" in shown
    assert not [word for word in ("None", "STR", "(default: )") if word in shown]


@pytest.mark.parametrize(
    ("flags", "value", "origin"),
    [("", "false", "off.yaml"), ("--no-snapshots", "false", "flag"), ("--snapshots", "true", "flag")],
)
def test_a_flag_that_equals_the_default_counts_as_given(
    flags, value, origin, sora, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("off.yaml").write_text("snapshots: false\n")
    done = sora("train", "--config", "off.yaml", *flags.split(), "--dry-run")
    assert re.search(rf"snapshots: {value} +# {origin}\n", done.out)
