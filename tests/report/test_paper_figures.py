"""Every figure of the paper is made from runs, and drawn as a picture and as a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from sora import data
from sora.cli import main
from sora.errors import UserError
from sora.figures import Bars, Figure, Line, Regions, Rule
from sora.probes import ProbedModel, SubjectOptions, create
from sora.report import measuring
from sora.report.files import write_figure
from sora.report.measuring import moments
from sora.report.paper_figures import FIGURES, Request, make
from sora.runs import RunFolder
from sora.runs.weights import digest_file
from sora.threat import Linf
from tests.probes.toys import images, smooth

from .toys import EPS, write_run

SNAPSHOTS = (10, 20, 30, 60)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs whose models have been measured: FGSM's collapses at step 40, SORA's does not."""
    root = tmp_path_factory.mktemp("runs")
    for method in ("fgsm", "sora"):
        run = write_run(root / f"{method}-s0", method, probes=True)
        subject = ProbedModel(smooth(), images(8), Linf(EPS))
        for step in SNAPSHOTS:
            run.snapshots.write(step, 0, {})
            result = create("boundary", points=5).measure(subject)
            run.write_probe(f"boundary-{step}", {"probe": "boundary", **result})
    return root


def figure_of(name: str, runs: Path) -> Figure:
    names = {"boundary": ["fgsm-s0"], "classes": []}.get(name, ["fgsm-s0", "sora-s0"])
    return make(name, Request([str(runs / each) for each in names] or ["digits"]))


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_as_picture_and_page(name: str, runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    figure = figure_of(name, runs)
    for ending in ("png", "pdf", "svg", "html"):
        write_figure(figure, tmp_path / f"{name}.{ending}", name)
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (tmp_path / f"{name}.svg").read_text()
    page = (tmp_path / f"{name}.html").read_text()
    assert page.count('class="plot"') + page.count("<figure><img ") == sum(
        panel is not None and not any(type(item).__name__ == "Surface" for item in panel.items)
        for panel in figure.panels
    )


def test_the_boundary_is_shown_at_three_steps(runs: Path) -> None:
    panels = [panel for panel in figure_of("boundary", runs).panels if panel]
    assert [panel.title.partition(":")[0] for panel in panels] == ["step 10", "step 30", "step 60"]
    assert all(isinstance(panel.items[0], Regions) for panel in panels)
    assert len({panel.title.partition(":")[2] for panel in panels}) == 1  # the same image


@pytest.mark.parametrize(
    ("steps", "alarm", "expected"),
    [([10, 20, 30, 40, 50], 45, [20, 40, 50]), ([1, 2, 3], None, [1, 2, 3]), ([5, 6, 9], 2, [5, 6, 9])],
)
def test_the_steps_of_the_boundary(
    steps: list[int], alarm: int | None, expected: list[int], tmp_path: Path
) -> None:
    run = RunFolder(tmp_path)
    for step in steps:
        run.snapshots.write(step, 0, {})
    if alarm:
        (tmp_path / "events.jsonl").write_text(f'{{"event": "alarm", "step": {alarm}}}\n')
    assert moments(run) == expected


def test_too_few_snapshots_for_the_boundary(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has 0 snapshots"):
        moments(RunFolder(tmp_path))


def test_the_collapse_has_both_runs_and_the_surroundings_of_the_alarm(runs: Path) -> None:
    first, around = figure_of("collapse", runs).panels
    assert first is not None
    assert around is not None
    lines = {item.name for item in first.items if isinstance(item, Line)}
    assert lines == {"PertAlign of fgsm-s0", "PertAlign of sora-s0"}
    assert around.title == "fgsm-s0, around the alarm at step 40"
    assert any(isinstance(item, Rule) and item.at == 40 for item in around.items)


def test_radii_are_overlaid_on_an_absolute_axis(runs: Path) -> None:
    [panel] = figure_of("eps-overlay", runs).panels
    assert panel is not None
    lines = [item for item in panel.items if isinstance(item, Line)]
    assert len(lines) == 2
    assert lines[0].x[0] == pytest.approx(-2 * 255 * EPS)


def test_classes_are_counted(runs: Path) -> None:
    [panel] = figure_of("classes", runs).panels
    assert panel is not None
    [bars] = panel.items
    assert isinstance(bars, Bars)
    assert len(bars.values) == 10
    assert sum(bars.values) == 1257  # without the 180 held out


def test_classes_of_all_data_sets_leave_out_packed_folders(tmp_path: Path) -> None:
    for number in range(10):
        file = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(file)
    data.load(f"folder:{tmp_path / 'photos'}", tmp_path / "data")
    assert len(data.inventory(tmp_path / "data")) == len(data.inventory(tmp_path / "none")) + 1
    figure = make("classes", Request(options=SubjectOptions(data_dir=str(tmp_path / "data"))))
    assert [panel.title for panel in figure.panels if panel] == ["digits: 10 classes"]


@pytest.mark.parametrize(
    ("flags", "figure"), [("--at 10", "boundary"), ("--second pgd", "landscape"), ("--paper", "overview")]
)
def test_flags_of_another_figure_are_refused(
    flags: str, figure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["figure", "cost", "missing", *flags.split()]) == 2
    assert f"{flags.split()[0]} applies only to `sora figure {figure}`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("overview --paper runs", "name no runs with it"),
        ("overview --paper --limit 3", "--limit applies only to `sora figure` boundary, eps-curve, samples"),
        ("classes digits --seed 1", "--seed applies only to"),
        ("cost runs --device cpu", "--device applies only to"),
    ],
)
def test_flags_without_effect_are_refused(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["figure", *arguments.split()]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("name", ["cost", "overview"])
def test_runs_that_a_figure_leaves_out_are_named(
    name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly")
    write_run(tmp_path / "unfinished", "n-fgsm", finished=False)
    write_run(tmp_path / "copy", "sora")
    unattacked = write_run(tmp_path / "unattacked", "pgd-10")
    summary = unattacked.read_summary()
    del summary["accuracy"]["pgd10"], summary["attacks"]["pgd10"]
    unattacked.write_summary(summary)
    out = ["--out", str(tmp_path / "figure.svg")]
    assert main(["figure", name, str(runs), *map(str, tmp_path.iterdir()), *out]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert sorted(lines) == [
        "sora: not in the figure: copy has the settings and the seed of sora-s0 and is not compared.",
        "sora: not in the figure: unattacked: no accuracy under PGD-10",
        "sora: not in the figure: unfinished: it is not finished",
    ]


def test_a_probe_measures_again_after_the_weights_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "a")
    subject = ProbedModel(smooth(), images(8), Linf(EPS))
    monkeypatch.setattr(measuring, "load_subject", lambda *_: subject)
    for weights in (b"first", b"second"):
        run.weights.write_bytes(weights)
        assert measuring.result_of("eps-curve", run, SubjectOptions())["fgsm"]
        stored = run.read_probe("eps-curve")
        assert stored is not None
        assert stored["weights_blake2b"] == digest_file(run.weights)
    run.write_probe("eps-curve", {"fgsm": "stored"})
    assert measuring.result_of("eps-curve", run, SubjectOptions())["fgsm"] == "stored"


def test_an_unknown_figure_and_a_figure_without_runs() -> None:
    with pytest.raises(UserError, match="landscape"):
        make("landscpe", Request(["a"]))
    with pytest.raises(UserError, match="name at least one run"):
        make("cost", Request())
