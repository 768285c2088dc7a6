"""`sora probe` on two small runs: files, pictures, printed lines and error messages."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from sora import data, probes
from sora.cli import main
from sora.data.splits import choose
from sora.runs import RunFolder
from sora.settings import Request
from sora.training import train

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    small = {"epochs": 2, "batch_size": 48, "width": 4, "limit_train": 96, "limit_test": 40, "holdout": 20}
    small |= {"log_every": 1, "threads": 1, "attacks": ("clean",), "monitor": ("kl",), "monitor_every": 2}
    small |= {"dataset": "digits", "method": "fgsm", "set": {"model.stages": 1}}
    train(Request(small | {"out": str(folder / "fgsm")}).resolve(), quiet=True)
    return [folder / "fgsm", shutil.copytree(folder / "fgsm", folder / "sora")]


@pytest.mark.parametrize("kind", probes.names())
def test_every_probe_writes_json_and_a_picture(
    kind: str, runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = probes.info(kind)
    images = 12 if kind == "boundary" else 4  # at least one of them must be classified correctly
    limit = ["--limit", str(images), "--device", "cpu"] if entry.needs == "model" else []
    named = "digits" if entry.needs == "data" else str(runs[0])
    assert main(["probe", kind, named, *limit, "--out", str(tmp_path)]) == 0
    title = f"{kind}-n{images}" if entry.needs == "model" else kind
    assert capsys.readouterr().out.splitlines()[-1] == f"picture: {tmp_path / title}.png"
    with Image.open(tmp_path / f"{title}.png") as picture:
        assert picture.width > 300
    assert [path.name for path in tmp_path.iterdir()] == [f"{title}.png"]
    if entry.needs in ("model", "logs"):
        name = entry.of or kind
        record = json.loads((runs[0] / "probes" / f"{title.replace(kind, name)}.json").read_text())
        assert (record["probe"], record["run"], record["at"]) == (name, "fgsm", None)


@pytest.mark.parametrize("separately", [False, True])
def test_several_runs_share_one_picture(
    separately: bool, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    named = map(str, runs) if separately else [str(runs[0].parent)]
    assert main(["probe", "samples", *named, "--device", "cpu", "--limit", "1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed] == ["fgsm", "sora", "picture"]
    assert (runs[0] / "probes" / "samples-n1-fgsm-sora.png").exists()
    assert all((run / "probes" / "samples-n1.json").exists() for run in runs)


def test_weights_of_a_step_and_json(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["probe", "samples", str(runs[0]), "--limit", "2", "--device", "cpu", "--json"]
    assert main(command) == 0
    final = json.loads(capsys.readouterr().out)["fgsm"]
    assert main([*command, "--at", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["fgsm"] == final  # step 4 is the last
    assert main([*command, "--at", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["fgsm"] != final
    assert (runs[0] / "probes" / "samples-2-n2.png").exists()
    assert json.loads((runs[0] / "probes" / "samples-2-n2.json").read_text())["at"] == 2
    assert main([*command, "--at", "2,4"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["step 2", "step 4"]
    assert (runs[0] / "probes" / "samples-2-4-n2.png").exists()


def test_fewer_images_do_not_replace_the_usual_result(runs: list[Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs[0], tmp_path / "run")
    shutil.rmtree(run / "probes", ignore_errors=True)
    (run / "probes").mkdir()
    usual = [run / "probes" / name for name in ("samples.json", "samples.png")]
    for path in usual:
        path.write_text("the result of hours")
    for more in (["--limit", "2"], ["--limit", "2", "--eps", "1/255"], ["--limit", "2", "--seed", "1"]):
        assert main(["probe", "samples", str(run), "--device", "cpu", "--json", *more]) == 0
    names = {path.name for path in (run / "probes").iterdir() if path.suffix == ".json"}
    assert names == {f"samples{end}.json" for end in ("", "-n2", "-n2-eps1_255", "-n2-seed1")}
    assert {path.read_text() for path in usual} == {"the result of hours"}


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line with which a request is refused."""
    assert main(["probe", *map(str, arguments)]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    return printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("eps-curv", "unknown probe 'eps-curv'; did you mean 'eps-curve'? allowed: "),
        ("landscape", "name at least one run folder"),
        ("landscape nowhere", "there is no run in nowhere: it has no config.yaml"),
        ("traces nowhere", "there is no run in nowhere"),
        ("landscape RUN --at 3", "has no snapshot of step 3; it has: 2, 4"),
        ("landscape RUN RUN", "the same run is named twice"),
        ("landscape RUN --limit 0", "--limit is 0; allowed: 1 or more"),
        ("fallen RUN --limit 5000 --device cpu", "test set has 360 images, 5000 were requested"),
    ],
)
def test_mistakes_are_one_line(
    arguments: str, message: str, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, *arguments.replace("RUN", str(runs[0])).split())


def test_a_folder_that_cannot_be_made_is_reported_before_anything_is_stored(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    before = sorted(runs[0].rglob("*"))
    flags = ("--seed", 7, "--out", tmp_path / "file" / "x")
    assert "cannot be created" in refused(capsys, "landscape", runs[0], *flags)
    assert sorted(runs[0].rglob("*")) == before


@pytest.mark.parametrize("kind", ["traces", "training"])
@pytest.mark.parametrize("line", ["{}", '{"step": "x"}', '{"event": 3, "step": [], "pert_align": {}}'])
def test_damaged_logs_are_one_line(
    kind: str, line: str, runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs[0], run)
    for log in ("metrics", "evals", "events"):
        path = run / f"{log}.jsonl"
        whole = path.read_text()
        path.write_text(f"{line}\n{whole}")
        assert main(["probe", kind, str(run)]) in (0, 1)  # an unused entry may be missing
        assert capsys.readouterr().err.count("\n") <= 1
        path.write_text(whole)


def test_damaged_weights_are_not_measured(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(runs[0], tmp_path / "run")
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "model.safetensors").write_bytes(content)
    assert main(["probe", "samples", str(run), "--limit", "4", "--device", "cpu"]) == 1
    assert "model.safetensors is damaged or was replaced" in capsys.readouterr().err


@pytest.fixture
def unfinished(runs: list[Path], tmp_path: Path) -> Path:
    """The files of a run that is still training or was killed."""
    folder = tmp_path / "killed"
    folder.mkdir()
    shutil.copy(runs[0] / "config.yaml", folder)
    shutil.copytree(runs[0] / "snapshots", folder / "snapshots")
    return folder


class TestUnfinished:
    def test_a_snapshot_needs_no_finished_run(
        self, runs: list[Path], unfinished: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        results = []
        for folder in (unfinished, runs[0]):
            assert main(["probe", "samples", str(folder), "--at", "2", "--limit", "2", "--json"]) == 0
            results += json.loads(capsys.readouterr().out).values()
        assert results[0] == results[1]

    def test_without_a_step_the_error_lists_the_snapshots(
        self, unfinished: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        message = refused(capsys, "landscape", unfinished)
        assert "killed is not finished; --at STEP takes a snapshot, it has: 2, 4" in message

    def test_a_custom_network_must_be_specified_again(
        self, unfinished: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config = unfinished / "config.yaml"
        text = config.read_text().replace("model: preactresnet18", "model: nobody.knows:it")
        text = text.partition("\n")[2]  # without the checksum
        config.write_text(text.replace("mean: [0.0]", "mean: null").replace("std: [1.0]", "std: null"))
        message = refused(capsys, "landscape", unfinished, "--at", 2)
        assert "specify it again: --model nobody.knows:it" in message


def test_a_progress_bar_only_on_a_terminal(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["probe", "fallen", str(runs[0]), "--limit", "12", "--device", "cpu"]
    assert main(command) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then treats standard error as a terminal
    monkeypatch.setenv("TERM", "xterm")
    assert main([*command, "--json"]) == 0
    assert capsys.readouterr().err == ""
    assert main(command) == 0
    printed = capsys.readouterr().err
    assert "fallen" in printed
    assert "100 %" in printed


@pytest.mark.parametrize("flag", ["--at", "--limit", "--eps", "--seed", "--model", "--data-dir", "--device"])
def test_options_of_models_are_refused_for_a_probe_of_logs(
    flag: str, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    message = f"traces reads the logs of a run; {flag} applies only to eps-curve, eps-overlay, landscape,"
    assert message in refused(capsys, "traces", runs[0], flag, 1)


def test_images_are_named_by_their_position_in_the_test_set(runs: list[Path]) -> None:
    test = data.load("digits").test
    chosen = choose(test.labels, 50).tolist()
    subject = probes.load_subject(RunFolder(runs[0]), 64, probes.SubjectOptions(images=50, device="cpu"))
    result = probes.create("boundary", points=3).measure(subject)
    assert result["images"]
    assert {image["image"] for image in result["images"]} <= set(chosen)
    for image in result["images"]:
        assert image["label"] == int(test.labels[image["image"]])


def test_the_help_describes_every_probe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--help"]) == 0
    printed = capsys.readouterr().out
    assert [name for name in probes.names() if name not in printed] == []


def test_runs_with_the_same_name_get_their_parents_name_too(runs: list[Path], tmp_path: Path) -> None:
    folders = [shutil.copytree(runs[0], tmp_path / parent / "run") for parent in ("a", "b")]
    report = probes.probe_runs("training", folders)
    assert list(report.results) == ["a-run", "b-run"]
    assert report.picture == tmp_path / "a" / "run" / "probes" / "training-a-run-b-run.png"
    assert report.picture.exists()
