"""A probe of several run folders."""

from __future__ import annotations

from pathlib import Path

from sora.probes import probe_runs

from .toys import logged_run


def test_the_picture_of_many_runs_has_a_name_of_bounded_length(tmp_path: Path) -> None:
    runs = [logged_run(tmp_path / (letter * 130)).path for letter in "ab"]
    picture = probe_runs("training", runs, out=tmp_path / "out").picture
    assert picture.name == "training-2-runs.png"
    assert picture.is_file()
    few = [logged_run(tmp_path / name).path for name in ("fgsm", "sora")]
    assert probe_runs("training", few, out=tmp_path / "out").picture.name == "training-fgsm-sora.png"
