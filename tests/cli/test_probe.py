"""`sora probe` on two small runs: files, pictures, printed lines and error messages."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from sora import data, probes
from sora.data.splits import choose
from sora.runs import RunFolder
from sora.settings import Request
from sora.training import train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    small = {"epochs": 2, "batch_size": 48, "width": 4, "limit_train": 96, "limit_test": 40, "holdout": 20}
    small |= {"log_every": 1, "threads": 1, "attacks": ("clean",), "monitor": ("kl",), "monitor_every": 2}
    small |= {"dataset": "digits", "method": "fgsm", "set": {"model.stages": 1}}
    train(Request(small | {"out": str(folder / "fgsm")}).resolve(), quiet=True)
    return [folder / "fgsm", shutil.copytree(folder / "fgsm", folder / "sora")]


@pytest.mark.parametrize("kind", probes.names())
def test_every_probe_writes_json_and_a_picture(kind, sora, runs, tmp_path) -> None:
    entry = probes.info(kind)
    images = 12 if kind == "boundary" else 4  # at least one of them must be classified correctly
    limit = ["--limit", images, "--device", "cpu"] if entry.needs == "model" else []
    named = "digits" if entry.needs == "data" else runs[0]
    printed = sora("probe", kind, named, *limit, "--out", tmp_path).out
    title = f"{kind}-n{images}" if entry.needs == "model" else kind
    assert printed.splitlines()[-1] == f"picture: {tmp_path / title}.png"
    with Image.open(tmp_path / f"{title}.png") as picture:
        assert picture.width > 300
    assert [path.name for path in tmp_path.iterdir()] == [f"{title}.png"]
    if entry.needs in ("model", "logs"):
        name = entry.of or kind
        record = json.loads((runs[0] / "probes" / f"{title.replace(kind, name)}.json").read_text())
        assert (record["probe"], record["run"], record["at"]) == (name, "fgsm", None)


@pytest.mark.parametrize("separately", [False, True])
def test_several_runs_share_one_picture(separately, sora, runs) -> None:
    named = runs if separately else [runs[0].parent]
    printed = sora("probe", "samples", *named, "--device", "cpu", "--limit", "1").out.splitlines()
    assert [line.split(":")[0] for line in printed] == ["fgsm", "sora", "picture"]
    assert (runs[0] / "probes" / "samples-n1-fgsm-sora.png").exists()
    assert all((run / "probes" / "samples-n1.json").exists() for run in runs)


def test_weights_of_a_step_and_json(sora, runs) -> None:
    command = ["probe", "samples", runs[0], "--limit", "2", "--device", "cpu"]
    final = sora.json(*command)["fgsm"]
    assert sora.json(*command, "--at", "4")["fgsm"] == final  # step 4 is the last
    assert sora.json(*command, "--at", "2")["fgsm"] != final
    assert (runs[0] / "probes" / "samples-2-n2.png").exists()
    assert json.loads((runs[0] / "probes" / "samples-2-n2.json").read_text())["at"] == 2
    assert list(sora.json(*command, "--at", "2,4")) == ["step 2", "step 4"]
    assert (runs[0] / "probes" / "samples-2-4-n2.png").exists()


def test_fewer_images_do_not_replace_the_usual_result(sora, runs, tmp_path) -> None:
    run = shutil.copytree(runs[0], tmp_path / "run")
    shutil.rmtree(run / "probes", ignore_errors=True)
    (run / "probes").mkdir()
    usual = [run / "probes" / name for name in ("samples.json", "samples.png")]
    for path in usual:
        path.write_text("the result of hours")
    for more in (["--limit", "2"], ["--limit", "2", "--eps", "1/255"], ["--limit", "2", "--seed", "1"]):
        sora("probe", "samples", run, "--device", "cpu", "--json", *more)
    names = {path.name for path in (run / "probes").iterdir() if path.suffix == ".json"}
    assert names == {f"samples{end}.json" for end in ("", "-n2", "-n2-eps1_255", "-n2-seed1")}
    assert {path.read_text() for path in usual} == {"the result of hours"}


def test_a_folder_that_cannot_be_made_is_reported_before_anything_is_stored(sora, runs, tmp_path) -> None:
    (tmp_path / "file").touch()
    before = sorted(runs[0].rglob("*"))
    flags = ("--seed", 7, "--out", tmp_path / "file" / "x")
    sora.refuse("cannot be created", "probe", "landscape", runs[0], *flags)
    assert sorted(runs[0].rglob("*")) == before


@pytest.mark.parametrize("kind", ["traces", "training"])
@pytest.mark.parametrize("line", ["{}", '{"step": "x"}', '{"event": 3, "step": [], "pert_align": {}}'])
def test_damaged_logs_are_one_line(kind, line, sora, runs, tmp_path) -> None:
    run = shutil.copytree(runs[0], tmp_path / "run")
    for log in ("metrics", "evals", "events"):
        path = run / f"{log}.jsonl"
        whole = path.read_text()
        path.write_text(f"{line}\n{whole}")
        done = sora("probe", kind, run, code=None)
        assert done.code in (0, 1)  # an unused entry may be missing
        assert done.err.count("\n") <= 1
        path.write_text(whole)


def test_a_snapshot_needs_no_finished_run_and_a_custom_network_is_specified_again(
    sora, runs, tmp_path
) -> None:
    """Of the files of a run that is still training or was killed."""
    folder = tmp_path / "killed"
    folder.mkdir()
    config = Path(shutil.copy(runs[0] / "config.yaml", folder))
    shutil.copytree(runs[0] / "snapshots", folder / "snapshots")
    command = ("--at", "2", "--limit", "2")
    one, other = (sora.json("probe", "samples", each, *command).values() for each in (folder, runs[0]))
    assert [*one] == [*other]
    message = "killed is not finished; --at STEP takes a snapshot, it has: 2, 4"
    sora.refuse(message, "probe", "landscape", folder)
    text = config.read_text().replace("model: preactresnet18", "model: nobody.knows:it")
    text = text.partition("\n")[2]  # without the checksum
    config.write_text(text.replace("mean: [0.0]", "mean: null").replace("std: [1.0]", "std: null"))
    sora.refuse("specify it again: --model nobody.knows:it", "probe", "landscape", folder, "--at", 2)


def test_a_progress_bar_only_on_a_terminal(sora, runs, monkeypatch) -> None:
    command = ["probe", "fallen", runs[0], "--limit", "12", "--device", "cpu"]
    assert sora(*command).err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then treats standard error as a terminal
    monkeypatch.setenv("TERM", "xterm")
    assert sora(*command, "--json").err == ""
    printed = sora(*command).err
    assert "fallen" in printed
    assert "100 %" in printed


def test_images_are_named_by_their_position_in_the_test_set(runs: list[Path]) -> None:
    test = data.load("digits").test
    chosen = choose(test.labels, 50).tolist()
    subject = probes.load_subject(RunFolder(runs[0]), 64, probes.SubjectOptions(images=50, device="cpu"))
    result = probes.create("boundary", points=3).measure(subject)
    assert result["images"]
    assert {image["image"] for image in result["images"]} <= set(chosen)
    for image in result["images"]:
        assert image["label"] == int(test.labels[image["image"]])


def test_the_help_describes_every_probe(sora) -> None:
    printed = sora("probe", "--help").out
    assert [name for name in probes.names() if name not in printed] == []


def test_runs_with_the_same_name_get_their_parents_name_too(runs: list[Path], tmp_path: Path) -> None:
    folders = [shutil.copytree(runs[0], tmp_path / parent / "run") for parent in ("a", "b")]
    report = probes.probe_runs("training", folders)
    assert list(report.results) == ["a-run", "b-run"]
    assert report.picture == tmp_path / "a" / "run" / "probes" / "training-a-run-b-run.png"
    assert report.picture.exists()
