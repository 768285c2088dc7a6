"""`sora probe` on two small runs: files, pictures, words and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from sora.cli import main
from sora.report.traces import falling_windows, scaled, traces
from sora.training import train
from sora.training.config import TrainConfig, defaults

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("runs")
    small = {"epochs": 2, "batch_size": 48, "width": 4, "limit_train": 96, "limit_test": 40, "holdout": 20}
    small |= {
        "log_every": 1,
        "threads": 1,
        "attacks": ("clean",),
        "monitor": ("kl", "pgd"),
        "monitor_every": 2,
    }
    for method in ("fgsm", "sora"):
        table = defaults("digits", method) | small | {"out": str(place / method)}
        train(TrainConfig.build(table | {"set": table["set"] | {"model.stages": 1}}), quiet=True)
    return [place / "fgsm", place / "sora"]


@pytest.mark.parametrize("kind", ["eps-curve", "landscape", "boundary", "curvature", "traces"])
def test_every_probe_writes_json_and_a_picture(
    kind: str, runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["probe", kind, *map(str, runs), "--limit", "12", "--out", str(tmp_path), "--device", "cpu"])
        == 0
    )
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["fgsm", "sora", "picture"]
    with Image.open(tmp_path / f"{kind}-fgsm-sora.png") as picture:
        assert picture.width > 300
    for run in runs:
        record = json.loads((run / "probes" / f"{kind}.json").read_text())
        assert (record["probe"], record["run"], record["at"]) == (kind, run.name, None)


def test_weights_of_a_step_and_json(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["probe", "eps-curve", str(runs[0]), "--limit", "5", "--device", "cpu", "--json"]
    assert main(command) == 0
    final = json.loads(capsys.readouterr().out)["fgsm"]
    assert main([*command, "--at", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["fgsm"] == final  # step 4 is the last
    assert main([*command, "--at", "2"]) == 0
    assert (runs[0] / "probes" / "eps-curve-2.png").exists()
    assert json.loads((runs[0] / "probes" / "eps-curve-2.json").read_text())["at"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eps-curv"], "allowed: eps-curve, landscape, boundary, curvature, traces"),
        (["landscape"], "name at least one run folder"),
        (["landscape", "nowhere"], "there is no run in nowhere: it has no config.yaml"),
        (["traces", "nowhere"], "there is no run in nowhere"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_missing_snapshot_is_named(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "landscape", str(runs[0]), "--at", "3"]) == 2
    assert "has no snapshot of step 3; it has: 2, 4" in capsys.readouterr().err
    assert main(["probe", "landscape", str(runs[0]), str(runs[0])]) == 2
    assert "the same run is named twice" in capsys.readouterr().err


@pytest.fixture
def unfinished(runs: list[Path], tmp_path: Path) -> Path:
    """What a run that still trains, or was killed, has on disk."""
    folder = tmp_path / "killed"
    folder.mkdir()
    shutil.copy(runs[0] / "config.yaml", folder)
    shutil.copytree(runs[0] / "snapshots", folder / "snapshots")
    return folder


class TestUnfinished:
    def test_a_snapshot_needs_no_finished_run(
        self, runs: list[Path], unfinished: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = []
        for folder in (unfinished, runs[0]):
            assert main(["probe", "landscape", str(folder), "--at", "2", "--limit", "5", "--json"]) == 0
            found += json.loads(capsys.readouterr().out).values()
        assert found[0] == found[1]

    def test_without_a_step_the_kept_ones_are_named(
        self, unfinished: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["probe", "landscape", str(unfinished)]) == 2
        assert "killed is not finished; --at STEP takes a snapshot, it has: 2, 4" in capsys.readouterr().err

    def test_a_network_of_the_users_own_must_be_repeated(
        self, unfinished: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config = unfinished / "config.yaml"
        config.write_text(config.read_text().replace("model: preactresnet18", "model: nobody.knows:it"))
        assert main(["probe", "landscape", str(unfinished), "--at", "2"]) == 2
        assert "repeat it: --model nobody.knows:it" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["eps-curve", "landscape", "boundary", "curvature"])
def test_a_bar_on_a_terminal_and_nowhere_else(
    kind: str, runs: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["probe", kind, str(runs[0]), "--limit", "12", "--device", "cpu"]
    assert main(command) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes standard error for a terminal
    monkeypatch.setenv("TERM", "xterm")
    assert main([*command, "--json"]) == 0
    assert capsys.readouterr().err == ""
    assert main(command) == 0
    said = capsys.readouterr().err
    assert kind in said
    assert "100 %" in said


class TestTraces:
    def test_a_step_is_refused(self, runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["probe", "traces", str(runs[0]), "--at", "2"]) == 2
        said = "traces shows all steps of a run; --at goes with eps-curve, landscape, boundary, curvature"
        assert said in capsys.readouterr().err

    def test_series_of_all_logs(self, runs: list[Path]) -> None:
        found = traces(runs[1])
        assert found["series"]["loss"]["steps"] == [1, 2, 3, 4]
        assert found["series"]["kl"]["steps"] == [2, 4]
        assert {"pert_align", "pgd", "held-out clean", "step_size"} <= found["series"].keys()

    def test_a_fall_is_reported_once_and_a_constant_never(self) -> None:
        assert len(falling_windows([1.0] * 300 + [0.0] * 300)) == 1
        assert falling_windows([0.7] * 600) == []
        assert falling_windows([0.0] * 300 + [1.0] * 300) == []  # a rise is none
        assert falling_windows([]) == []

    def test_scaling_keeps_ranges_that_exist(self) -> None:
        assert scaled("pgd", [0.2, 0.5]) == [0.2, 0.5]
        assert scaled("elle", [1e-4, 1e-2, 1.0]) == pytest.approx([0, 0.5, 1])
        assert scaled("loss", [3.0, 3.0]) == [0.5, 0.5]
