"""`sora compare` and `sora demo`."""

import csv
import json
import re
import subprocess
import sys
import time

import pytest

from sora._files import locked_folder, wait_until_free
from sora.cli.demo import story
from sora.runs import RunFolder


@pytest.mark.usefixtures("grid_in_process")
def test_compare_trains_every_method_on_every_seed(sora, tiny, tmp_path) -> None:
    folder, more = tmp_path / "c", "--methods fgsm,pgd-2,sora --seeds 2 --set pgd.steps=1"
    flags = [*tiny, *more.split(), "--out", folder]
    done = sora("compare", *flags)
    assert done.code == 0, done.err
    runs = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert runs == ["fgsm-s0", "fgsm-s1", "pgd-2-s0", "pgd-2-s1", "sora-s0", "sora-s1"]
    table = json.loads((folder / "comparison.json").read_text())
    entry = table["methods"]["sora"]
    assert entry["seeds"] == [0, 1]
    first, second = (json.loads((folder / f"sora-s{s}" / "summary.json").read_text()) for s in (0, 1))
    mean = (first["accuracy"]["pgd10"] + second["accuracy"]["pgd10"]) / 2
    assert entry["accuracy"]["pgd10"]["mean"] == pytest.approx(mean)
    rows = list(csv.DictReader((folder / "comparison.csv").open()))
    assert [row["method"] for row in rows] == ["fgsm", "pgd-2", "sora"]
    assert [row["forwards"] for row in rows] == ["2", "2", "2"]  # PGD with one step
    assert "pgd.steps: 1" in (folder / "pgd-2-s0" / "config.yaml").read_text()
    assert "±" in done.out
    assert "n = 40 test images, 2 seeds" in done.out
    lines = done.err.splitlines()  # piped: a line per epoch, with the loss of its last step, and per run
    for name in ("fgsm-s0", "pgd-2-s1", "sora-s1"):
        losses = {line["epoch"]: line["loss"] for line in RunFolder(folder / name).read_log("metrics")}
        for epoch in (1, 2):
            assert f"{name}: epoch {epoch}/2  loss {losses[epoch]:.3f}" in lines, done.err
        assert any(line.startswith(f"{name}: done (") for line in lines), done.err
    assert any(line.endswith("(6 of 6)") for line in lines)
    refused = sora("compare", *flags)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    done = sora("compare", *flags, "--resume")
    assert done.code == 0, done.err


@pytest.mark.usefixtures("grid_in_process")
def test_without_fgsm_there_is_no_verdict_and_all_files_are_written(sora, tiny, tmp_path) -> None:
    folder = tmp_path / "c"
    flags = [*tiny, "--methods", "fgsm,sora", "--attacks", "clean,pgd10", "--out", folder]
    done = sora("compare", *flags)
    assert done.code == 0, done.err
    comparison = json.loads((folder / "comparison.json").read_text())
    assert [entry["verdict"] for entry in comparison["methods"].values()] == [None, None]
    rows = list(csv.DictReader((folder / "comparison.csv").open()))
    assert [row["verdict"] for row in rows] == ["", ""]
    assert "| sora |" in (folder / "comparison.md").read_text()
    for name, entry in comparison["methods"].items():
        assert "has no verdict" in story(name, entry, [])
    done = sora("train", *tiny, "--attacks", "clean,pgd10", "--out", tmp_path / "one")
    assert done.code == 0, done.err
    assert "None" not in done.out


@pytest.mark.usefixtures("grid_in_process")
def test_results_added_later_reach_the_comparison(sora, tiny, tmp_path) -> None:
    folder = tmp_path / "c"
    flags = [*tiny, "--methods", "fgsm,sora", "--out", folder]
    assert sora("compare", *flags).code == 0
    added = sora("evaluate", folder / "sora-s0", "--attacks", "apgd-ce", "--json")
    assert added.code == 0, added.err
    other = sora("evaluate", folder / "sora-s0", "--attacks", "pgd2", "--limit", "10", "--eps", "0.01")
    assert other.code == 0, other.err  # of other images and another radius
    assert sora("compare", *flags, "--resume").code == 0
    methods = json.loads((folder / "comparison.json").read_text())["methods"]
    assert methods["sora"]["accuracy"]["apgd-ce"]["mean"] == json.loads(added.out)[0]["accuracy"]["apgd-ce"]
    assert "apgd-ce" not in methods["fgsm"]["accuracy"]
    assert "pgd2" not in methods["sora"]["accuracy"]
    header, *rows = (folder / "comparison.csv").read_text().splitlines()
    assert "apgd-ce_mean" in header
    assert {row.count(",") for row in rows} == {header.count(",")}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--methods", "fgsm,sroa"], "did you mean 'sora'"),
        (["--methods", "fgsm", "--set", "sora.beta=0.5"], "belongs to none of the methods fgsm"),
        (["--methods", "fgsm", "--epochs", "0"], "epochs is 0"),
        (["--variant", "sora"], "--variant takes 'NAME: METHOD key=value ...'"),
        (["--variant", "a: sora beta"], "expected key=value"),
        (["--variant", "a: sora bath_size=3"], "did you mean 'batch_size'"),
        (["--variant", "a: sora fgsm.x=3"], "unknown --set key"),
        (["--variant", "a: sora seed=3"], "sets seed"),
        (["--variant", "a: sora set=3 sora.beta=0.1"], "set is 3; expected a table"),
        (["--grid", "missing.yaml"], "does not exist"),
    ],
)
def test_mistakes(flags, words, sora, tmp_path) -> None:
    done = sora("compare", *flags, "--out", tmp_path / "c")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert words in done.err
    assert not (tmp_path / "c").exists()


@pytest.mark.usefixtures("grid_in_process")
def test_a_run_that_fails_is_named_and_the_others_are_kept(sora, tiny, tmp_path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "fgsm-s0").write_text("a file where the run folder should be")
    flags = [*tiny, "--methods", "fgsm,sora", "--out", tmp_path / "c", "--resume"]
    done = sora("compare", *flags)
    assert done.code == 1
    assert "fgsm-s0 failed" in done.err
    assert list(json.loads((tmp_path / "c" / "comparison.json").read_text())["methods"]) == ["sora"]


@pytest.mark.usefixtures("grid_in_process")
def test_runs_that_are_refused_at_the_start_leave_nothing(sora, tiny, tmp_path) -> None:
    (tmp_path / "empty").touch()
    done = sora("compare", *tiny, "--methods", "fgsm", "--init", tmp_path / "empty", "--out", tmp_path / "c")
    assert done.code == 1
    assert "no run finished (fgsm-s0: sora: " in done.err
    assert not (tmp_path / "c").exists()


@pytest.mark.usefixtures("grid_in_process")
def test_demo_tells_the_story_and_saves_a_picture(sora, tmp_path) -> None:
    done = sora("demo", "--epochs", "1", "--out", tmp_path / "d")
    assert done.code == 0, done.err
    assert (tmp_path / "d" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert set(json.loads((tmp_path / "d" / "comparison.json").read_text())["methods"]) == {"fgsm", "sora"}
    for name in ("fgsm", "sora"):
        assert any(line.startswith(name) and "PGD-10" in line for line in done.out.splitlines())


def test_a_grid_told_to_stop_takes_its_runs_with_it(tmp_path) -> None:
    flags = f"--methods sora --epochs 50 --threads 1 --out {tmp_path / 'c'}".split()
    grid = subprocess.Popen([sys.executable, "-m", "sora", "compare", *flags], stderr=subprocess.DEVNULL)
    metrics = tmp_path / "c" / "sora-s0" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    grid.terminate()
    assert grid.wait() == 143
    assert list((metrics.parent / "checkpoints").glob("step-*"))  # the run had time to write one
    size = metrics.stat().st_size
    time.sleep(1.0)
    assert metrics.stat().st_size == size  # and nobody trains on


@pytest.mark.usefixtures("grid_in_process")
def test_bars_move_to_the_end_on_a_terminal(sora, tiny, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    done = sora("compare", *tiny, "--methods", "fgsm,sora", "--out", tmp_path / "c")
    assert done.code == 0, done.err
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", done.err)
    for name in ("fgsm-s0", "sora-s0"):
        assert f"{name}: done" in plain
        assert re.search(rf"{name} .*100 %", plain)


LONG = ["--epochs", "150", "--eval-every", "0", "--attacks", "clean", "--no-snapshots", "--methods", "fgsm"]


def test_runs_of_a_killed_grid_end_and_the_next_grid_continues_them(sora, tiny, tmp_path) -> None:
    flags = [*tiny, *LONG, "--out", str(tmp_path / "c")]
    grid = subprocess.Popen([sys.executable, "-m", "sora", "compare", *flags], stderr=subprocess.DEVNULL)
    run = tmp_path / "c" / "fgsm-s0"
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
        assert grid.poll() is None
        time.sleep(0.05)
    grid.kill()
    grid.wait()
    wait_until_free(run, 120)
    with locked_folder(run):  # the run has ended
        assert not (run / "summary.json").exists()
        checkpoints = RunFolder(run).checkpoints
        written = checkpoints.read(checkpoints.newest_first()[0])[1]["step"]
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"]
        assert written == last  # with a checkpoint of its very last step
    done = sora("compare", *flags, "--resume")
    assert done.code == 0, done.err
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 301))


def test_a_second_grid_in_the_same_folder_is_refused(sora, tiny, tmp_path) -> None:
    (tmp_path / "c").mkdir()
    with locked_folder(tmp_path / "c"):
        done = sora("compare", *tiny, *LONG, "--out", tmp_path / "c", "--resume")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "in use by another process" in done.err
    assert [path.name for path in (tmp_path / "c").iterdir()] == [".lock"]


@pytest.mark.usefixtures("grid_in_process")
def test_finished_runs_are_compared_without_training(sora, tiny, tmp_path) -> None:
    for name, more in {"a": "", "b": "--method fgsm --guard rollback", "c": "--eps 0.1"}.items():
        flags = [*tiny, "--epochs", "1", *more.split()]
        assert sora("train", *flags, "--out", tmp_path / name, "--quiet").code == 0
    done = sora("compare", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "both", "--json")
    assert done.code == 0, done.err
    table = json.loads(done.out)
    assert list(table["methods"]) == ["sora", "fgsm + rollback"]
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())
    entry = table["methods"]["fgsm + rollback"]
    assert entry["accuracy"]["pgd10"]["mean"] == summary["accuracy"]["pgd10"]
    assert json.loads((tmp_path / "both" / "comparison.json").read_text()) == table
    printed = sora("compare", tmp_path / "a", tmp_path / "b")
    assert "fgsm + rollback" in printed.out
    other = sora("compare", tmp_path / "a", tmp_path / "c")  # the same method under another radius
    assert other.code == 0, other.err
    assert "a (sora)" in other.out
    assert "c (sora)" in other.out
    assert re.search(r"method +eps ", other.out)
    assert "linf eps" not in other.out
    nothing = sora("compare", tmp_path / "a", tmp_path / "none")
    assert (nothing.code, nothing.err.count("\n")) == (2, 1)


VARIANTS = ["--variant", "no sampling: sora sora.sample=false batch-size=16"]
VARIANTS += ["--variant", "wide: fgsm eps=0.2"]


@pytest.mark.usefixtures("grid_in_process")
def test_named_variants_are_rows_and_comparisons_can_be_joined(sora, tiny, tmp_path) -> None:
    short = [*tiny, "--epochs", "1", "--eval-every", "0"]
    done = sora("compare", *short, *VARIANTS, "--seeds", "2", "--out", tmp_path / "c")
    assert done.code == 0, done.err
    folders = sorted(path.name for path in (tmp_path / "c").iterdir() if path.is_dir())
    assert folders == ["no-sampling-s0", "no-sampling-s1", "wide-s0", "wide-s1"]
    settings = RunFolder(tmp_path / "c" / "no-sampling-s1").read_settings()
    assert (settings.variant, settings.batch_size, settings.set["sora.sample"]) == ("no sampling", 16, False)
    assert "batch_size: variant no sampling" in (tmp_path / "c/no-sampling-s0/config.yaml").read_text()
    comparison = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert (comparison["dataset"], comparison["threat"]) == ("digits", None)
    entry = comparison["methods"]["no sampling"]
    runs = [RunFolder(tmp_path / "c" / f"no-sampling-s{seed}").read_summary() for seed in (0, 1)]
    assert entry["accuracy"]["clean"]["values"] == [run["accuracy"]["clean"] for run in runs]
    assert entry["peak_memory_mb"]["values"] == [run["peak_memory_mb"] for run in runs]
    assert re.search(r"variant +eps .*train s +peak MB", done.out)
    assert "linf eps" not in done.out

    more = sora("compare", *short, *VARIANTS[:2], "--seed", "2", "--out", tmp_path / "d")
    assert more.code == 0, more.err
    joined = sora("compare", "--json", tmp_path / "c", tmp_path / "d", tmp_path / "c" / "wide-s0")
    assert joined.code == 0, joined.err
    rows = json.loads(joined.out)["methods"]
    assert {name: row["seeds"] for name, row in rows.items()} == {"no sampling": [0, 1, 2], "wide": [0, 1]}
    again = sora("compare", *short, *VARIANTS[:2], "--out", tmp_path / "e")
    assert again.code == 0, again.err
    twice = sora("compare", tmp_path / "c", tmp_path / "e")
    assert (twice.code, "are the same run" in twice.err, twice.err.count("\n")) == (2, True, 1)


@pytest.mark.usefixtures("grid_in_process")
def test_a_grid_file_names_rows(sora, tiny, tmp_path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(
        "settings: {epochs: 7}\nrows:\n  a: {method: fgsm, eps: 0.1}\n  b: {set: {sora.beta: 0.5}}\n"
    )
    done = sora("compare", "--dry-run", "--grid", file, "--out", tmp_path / "c")
    assert done.code == 0, done.err
    assert re.search(r"sora.beta: 0.5 +# variant b", done.out)
    assert done.out.count("epochs: 7") == 2
    flags = sora("compare", "--dry-run", "--grid", file, "--epochs", "3", "--out", tmp_path / "c")
    assert flags.out.count("epochs: 3") == 2


@pytest.mark.usefixtures("grid_in_process")
def test_a_grid_with_a_relative_data_folder_and_a_common_variant_is_continued(
    sora, tiny, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("variant: mine\n")
    flags = [*tiny, "--epochs", "1", "--methods", "fgsm,sora", "--attacks", "clean", "--data-dir", "data"]
    flags += ["--config", "c.yaml", "--out", "c"]
    for more in ([], ["--resume"]):
        done = sora("compare", *flags, *more)
        assert done.code == 0, done.err
        comparison = json.loads((tmp_path / "c" / "comparison.json").read_text())
        assert list(comparison["methods"]) == ["fgsm", "sora"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a: {model: 'os:getcwd'}", "runs your own code"),
        ("a: {out: /etc}", "sets out"),
        ("a: {data_dir: /etc}", "sets data_dir"),
        ("a: {mehtod: sora}", "did you mean 'method'"),
        ("a b: {}\n  a-b: {}", "would share the folder"),
        ("a: 3", "expected a table"),
        ("'': {}", "is not a valid name for a variant"),
    ],
)
def test_mistakes_in_a_grid_file(rows, message, sora, tmp_path) -> None:
    (tmp_path / "grid.yaml").write_text(f"rows:\n  {rows}\n")
    test_mistakes(["--grid", str(tmp_path / "grid.yaml")], message, sora, tmp_path)


def test_story_of_a_run_that_was_never_robust() -> None:
    entry = {
        "accuracy": {"fgsm": {"mean": 0.98}, "pgd10": {"mean": 0.0}},
        "pert_align": {"mean": 0.01},
        "alarms": [50],
        "verdict": "overfitted",
    }
    text = story("fgsm", entry, [{"epoch": 1, "accuracy": {"pgd10": 0.03}}])
    assert "It was never robust (at best 3 % under PGD-10 on held-out images)" in text
