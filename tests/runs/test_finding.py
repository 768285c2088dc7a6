"""Which runs a path stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from sora.cli import main
from sora.errors import UserError
from sora.report.reading import read_runs
from sora.runs import find_runs
from tests.report.toys import write_run


def test_a_folder_stands_for_the_runs_in_it_and_each_run_is_found_once(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (tmp_path / "empty").mkdir()
    for name in ("b", "a", "grid/deep/c", "grid/too/deep/d"):
        write_run(runs / name)
    paths = [run.path.relative_to(runs).as_posix() for run in find_runs([runs / "b", runs])]
    assert paths == ["b", "a", "grid/deep/c"]
    with pytest.raises(UserError, match="there is no run in"):
        find_runs([tmp_path / "empty"])
    with pytest.raises(UserError, match="there is no folder"):
        find_runs([tmp_path / "none"])


def test_a_comparison_and_a_report_see_the_same_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("digits/fgsm-s0", "other/grid/sora-s0")):
        write_run(tmp_path / name, ("fgsm", "sora")[number])
    assert [run.label for run in read_runs([tmp_path])] == ["fgsm-s0", "sora-s0"]
    assert main(["compare", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "fgsm" in printed
    assert "sora" in printed
