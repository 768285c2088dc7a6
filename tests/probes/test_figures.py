"""Pictures of what a user names: every figure of the paper, as picture and page, from runs and data sets."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from sora import data, probes
from sora.cli import main
from sora.errors import UserError
from sora.figures import BLUE, RED, Bars, Line, Panel, Regions, Rule
from sora.probes import ProbedModel, SubjectOptions, _runs, measure_named, probe_runs
from sora.runs import RunFolder, digest_file

from .toys import THREAT, images, logged_run, smooth, stored_result, write_run

SNAPSHOTS = (10, 20, 30, 60)
FIGURES = [name for name in probes.names() if probes.info(name).figures]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs whose models have been measured: FGSM's collapses at step 40, SORA's does not."""
    root = tmp_path_factory.mktemp("runs")
    for method in ("fgsm", "sora"):
        run = write_run(root / f"{method}-s0", method, probes=True)
        for step in SNAPSHOTS:
            run.snapshots.write(step, 0, {})
            run.write_probe(f"boundary-{step}", {"probe": "boundary", **stored_result("boundary")})
    return root


def named(name: str, runs: Path) -> str:
    return {"boundary": str(runs / "fgsm-s0"), "classes": "digits"}.get(name, str(runs))


def panels_of(name: str, runs: Path, **options: Any) -> list[Panel]:
    found = measure_named(name, [named(name, runs)], reuse=True, **options)
    return [panel for panel in found.probe.figure(found.results).panels if panel]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_as_picture_and_page(name: str, runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    assert main(["figure", name, named(name, runs), "--out", f"{tmp_path}/f.svg,{tmp_path}/f.html"]) == 0
    assert "<svg" in (tmp_path / "f.svg").read_text()
    panels = panels_of(name, runs, **({"steps": "alarm", "panels": 1} if name == "boundary" else {}))
    flat = [panel for panel in panels if not any(type(item).__name__ == "Surface" for item in panel.items)]
    page = (tmp_path / "f.html").read_text()
    assert page.count('class="plot"') + page.count("<figure><img ") == len(flat)


def test_the_default_of_sora_figure_is_a_pdf(runs: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["figure", "cost", str(runs)]) == 0
    assert (tmp_path / "cost.pdf").read_bytes().startswith(b"%PDF")


def test_the_boundary_is_shown_at_three_steps(runs: Path) -> None:
    panels = panels_of("boundary", runs, steps="alarm", panels=1)
    assert [panel.title.partition(":")[0] for panel in panels] == ["step 10", "step 30", "step 60"]
    assert all(isinstance(panel.items[0], Regions) for panel in panels)
    assert len({panel.title.partition(":")[2] for panel in panels}) == 1  # the same image
    with pytest.raises(UserError, match="several steps are shown of one run"):
        measure_named("boundary", [runs], steps="alarm")


@pytest.mark.parametrize(
    ("steps", "alarm", "expected"),
    [([10, 20, 30, 40, 50], 45, [20, 40, 50]), ([1, 2, 3], None, [1, 2, 3]), ([5, 6, 9], 2, [5, 6, 9])],
)
def test_the_steps_of_the_boundary(steps, alarm, expected, tmp_path) -> None:
    run = RunFolder(tmp_path)
    with pytest.raises(UserError, match="has 0 snapshots"):
        _runs.moments(run)
    for step in steps:
        run.snapshots.write(step, 0, {})
    if alarm:
        (tmp_path / "events.jsonl").write_text(f'{{"event": "alarm", "step": {alarm}}}\n')
    assert _runs.moments(run) == expected


def test_the_collapse_has_both_runs_and_the_surroundings_of_the_alarm(runs: Path) -> None:
    first, *around = panels_of("collapse", runs)
    assert (first.x.low, first.x.high) == (0, 60)
    assert {(panel.x.low, panel.x.high) for panel in around} == {(30, 50)}
    for panel in (first, *around):
        lines = {item.name: item.colour for item in panel.items if isinstance(item, Line)}
        assert lines == {"fgsm-s0": RED, "sora-s0": BLUE}
        assert any(isinstance(item, Rule) and item.at == 40 for item in panel.items)
    labels = ["PertAlign", "PGD-10\nheld-out", "FGSM\nheld-out", "clean\nheld-out", "linearity", "loss"]
    assert [panel.y.label for panel in around] == labels


def test_radii_are_overlaid_on_an_absolute_axis_and_the_step_size_has_eps_and_the_cap(runs: Path) -> None:
    [panel] = panels_of("eps-overlay", runs)
    lines = [item for item in panel.items if isinstance(item, Line)]
    assert len(lines) == 2
    assert lines[0].x[0] == pytest.approx(-2 * 255 * THREAT.eps)
    fgsm, sora = panels_of("step-size", runs)
    assert fgsm.title == "fgsm-s0 (digits, preactresnet18): step size of 1 eps throughout"
    assert [getattr(item, "name", "") for item in fgsm.items] == ["step size", "eps = 25.5/255"]
    assert [getattr(item, "name", "") for item in sora.items][2:] == ["cap = 2 eps"]


def test_the_papers_own_numbers_need_no_run() -> None:
    found = measure_named("overview", (), paper=True)
    robust, clean = found.probe.figure(found.results).panels
    assert robust is not None
    assert clean is not None
    assert list(robust.x.names.values()) == list(clean.x.names.values())
    assert len(found.results) > 20
    assert "star" in {getattr(item, "marker", "") for item in robust.items}


def test_classes_are_counted_and_packed_folders_left_out(runs: Path, tmp_path: Path) -> None:
    [panel] = panels_of("classes", runs)
    [bars] = panel.items
    assert isinstance(bars, Bars)
    assert len(bars.values) == 10
    assert sum(bars.values) == 1257  # without the 180 held out
    for number in range(10):
        file = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(file)
    data.load(f"folder:{tmp_path / 'photos'}", tmp_path / "data")
    assert len(data.inventory(tmp_path / "data")) == len(data.inventory(tmp_path / "none")) + 1
    found = measure_named("classes", (), SubjectOptions(data_dir=str(tmp_path / "data")))
    assert list(found.results) == ["digits"]


@pytest.mark.parametrize("name", ["cost", "overview"])
def test_runs_that_a_figure_leaves_out_are_named(name: str, runs: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "unfinished", "n-fgsm", finished=False)
    write_run(tmp_path / "copy", "sora")
    unattacked = write_run(tmp_path / "unattacked", "pgd-10")
    summary = unattacked.read_summary()
    del summary["accuracy"]["pgd10"], summary["attacks"]["pgd10"]
    unattacked.write_summary(summary)
    assert sorted(measure_named(name, [runs, *tmp_path.iterdir()]).left_out) == [
        "copy has the settings and the seed of sora-s0 and is not compared.",
        "unattacked: no accuracy under PGD-10",
        "unfinished: it is not finished",
    ]


def test_stored_results_are_used_until_the_weights_change(tmp_path: Path, monkeypatch) -> None:
    run = write_run(tmp_path / "a")
    subject = ProbedModel(smooth(), images(8), THREAT)
    monkeypatch.setattr(_runs, "load_subject", lambda *_: subject)

    def result(reuse: bool = True) -> Any:
        return measure_named("eps-curve", [run.path], reuse=reuse).results["a"]["fgsm"]

    for value in (1.0, 2.0):
        save_file({"w": torch.tensor([value])}, run.weights)
        assert result() != "stored"
        stored = run.read_probe("eps-curve")
        assert stored is not None
        assert stored["weights_blake2b"] == digest_file(run.weights)
        run.write_probe("eps-curve", {"fgsm": "stored"})
        assert result() == "stored"
    assert result(reuse=False) != "stored"


def test_the_picture_of_many_runs_has_a_name_of_bounded_length(tmp_path: Path) -> None:
    runs = [logged_run(tmp_path / (letter * 130)).path for letter in "ab"]
    picture = probe_runs("training", runs, out=tmp_path / "out").picture
    assert picture.name == "training-2-runs.png"
    assert picture.is_file()
    shutil.rmtree(tmp_path / "out")
    few = [logged_run(tmp_path / name).path for name in ("fgsm", "sora")]
    assert measure_named("training", few).picture == few[0] / "probes" / "training-fgsm-sora.png"
