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
def test_flags_are_frozen(verb, sora, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", sora(*verb.split(), "--help").out)
    rows = re.findall(r"^\W{2,4}(--[a-z][\w-]*(?:, --[\w-]+)?)", shown, re.MULTILINE)
    offered = [flag for row in rows for flag in row.split(", ")]
    assert sorted(offered) == sorted(FLAGS["probe" if verb == "figure" else verb].split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --nrom l2", "unknown flag '--nrom'; did you mean '--norm'? allowed: --accumulate, "),
        ("train --epochs", "--epochs needs a value"),
        ("train --epochs --quiet", "--epochs needs a value"),
        ("train --quiet=yes", "unexpected argument 'yes'; see --help"),
        ("train --resume never", "--resume is 'never'; allowed: yes, auto"),
        ("train --lr nan", "--lr is 'nan'; expected a number"),
        ("predict", "missing: RUN, IMAGE [IMAGE ...]; see --help"),
        ("report", "missing: RUN [RUN ...]; see --help"),
        ("show", "missing: NAME; see --help"),
        ("list method", "kind is 'method'; did you mean 'methods'? allowed: "),
        ("evaluate RUN --set stages", "--set takes NAME=VALUE"),
        ("compare RUN --epochs 3", "--epochs has no effect on finished runs; only --out and --json do"),
        ("compare --jobs 2 RUN", "--jobs has no effect on finished runs; only --out and --json do"),
    ],
)
def test_a_mistake_is_one_line(arguments, message, sora) -> None:
    done = sora(*arguments.split())
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err


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
