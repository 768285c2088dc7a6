"""`sora compare` and `sora demo`."""

import csv
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sora._files import locked_folder, wait_until_free
from sora.runs import RunFolder

pytestmark = pytest.mark.usefixtures("grid_in_process")
SHORT = ["--epochs", "1", "--eval-every", "0"]


def test_compare_trains_every_method_on_every_seed(sora, tiny, tmp_path) -> None:
    folder, more = tmp_path / "c", "--methods pgd-2,sora --seeds 2 --set pgd.steps=1"
    flags = [*tiny, *more.split(), "--out", folder]
    done = sora("compare", *flags)
    runs = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert runs == ["pgd-2-s0", "pgd-2-s1", "sora-s0", "sora-s1"]
    table = json.loads((folder / "comparison.json").read_text())
    entry = table["methods"]["sora"]
    assert entry["seeds"] == [0, 1]
    first, second = (json.loads((folder / f"sora-s{s}" / "summary.json").read_text()) for s in (0, 1))
    mean = (first["accuracy"]["pgd10"] + second["accuracy"]["pgd10"]) / 2
    assert entry["accuracy"]["pgd10"]["mean"] == pytest.approx(mean)
    rows = list(csv.DictReader((folder / "comparison.csv").open()))
    assert [(row["method"], row["forwards"]) for row in rows] == [("pgd-2", "2"), ("sora", "2")]  # one step
    assert "pgd.steps: 1" in (folder / "pgd-2-s0" / "config.yaml").read_text()
    assert "±" in done.out
    assert "n = 40 test images, 2 seeds" in done.out
    lines = done.err.splitlines()  # piped: a line per epoch, with the loss of its last step, and per run
    for name in ("pgd-2-s1", "sora-s1"):
        losses = {line["epoch"]: line["loss"] for line in RunFolder(folder / name).read_log("metrics")}
        for epoch in (1, 2):
            assert f"{name}: epoch {epoch}/2  loss {losses[epoch]:.3f}" in lines, done.err
        assert any(line.startswith(f"{name}: done (") for line in lines), done.err
    assert any(line.endswith("(4 of 4)") for line in lines)
    sora.refuse("--resume", "compare", *flags)
    sora("compare", *flags, "--resume")


def test_without_fgsm_there_is_no_verdict_and_all_files_are_written(sora, tiny, tmp_path) -> None:
    folder = tmp_path / "c"
    short = [*tiny, *SHORT, "--attacks", "clean,pgd10"]
    sora("compare", *short, "--methods", "fgsm,sora", "--out", folder)
    comparison = json.loads((folder / "comparison.json").read_text())
    assert [entry["verdict"] for entry in comparison["methods"].values()] == [None, None]
    rows = list(csv.DictReader((folder / "comparison.csv").open()))
    assert [row["verdict"] for row in rows] == ["", ""]
    assert "| sora |" in (folder / "comparison.md").read_text()
    assert "None" not in sora("train", *short, "--out", tmp_path / "one").out


def test_results_added_later_reach_the_comparison(sora, tiny, tmp_path) -> None:
    folder = tmp_path / "c"
    flags = [*tiny, *SHORT, "--methods", "fgsm,sora", "--out", folder]
    sora("compare", *flags)
    (added,) = sora.json("evaluate", folder / "sora-s0", "--attacks", "apgd-ce")
    # Of other images and another radius:
    sora("evaluate", folder / "sora-s0", "--attacks", "pgd2", "--limit", "10", "--eps", "0.01")
    sora("compare", *flags, "--resume")
    methods = json.loads((folder / "comparison.json").read_text())["methods"]
    assert methods["sora"]["accuracy"]["apgd-ce"]["mean"] == added["accuracy"]["apgd-ce"]
    assert "apgd-ce" not in methods["fgsm"]["accuracy"]
    assert "pgd2" not in methods["sora"]["accuracy"]
    header, *rows = (folder / "comparison.csv").read_text().splitlines()
    assert "apgd-ce_mean" in header
    assert {row.count(",") for row in rows} == {header.count(",")}


def test_failed_runs_are_named_others_kept_and_refused_ones_leave_nothing(sora, tiny, tmp_path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "fgsm-s0").write_text("a file where the run folder should be")
    flags = [*tiny, *SHORT, "--methods", "fgsm,sora", "--out", tmp_path / "c", "--resume"]
    assert "fgsm-s0 failed" in sora("compare", *flags, code=1).err
    assert list(json.loads((tmp_path / "c" / "comparison.json").read_text())["methods"]) == ["sora"]
    (tmp_path / "empty").touch()
    flags = [*tiny, "--methods", "fgsm", "--init", tmp_path / "empty", "--out", tmp_path / "d"]
    assert "no run finished (fgsm-s0: sora: " in sora("compare", *flags, code=1).err
    assert not (tmp_path / "d").exists()


def test_demo_tells_the_story_and_saves_a_picture(sora, tmp_path) -> None:
    done = sora("demo", "--epochs", "1", "--out", tmp_path / "d")
    assert (tmp_path / "d" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert set(json.loads((tmp_path / "d" / "comparison.json").read_text())["methods"]) == {"fgsm", "sora"}
    for name in ("fgsm", "sora"):
        assert any(line.startswith(name) and "PGD-10" in line for line in done.out.splitlines())


def test_bars_move_to_the_end_on_a_terminal(sora, tiny, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    done = sora(
        "compare", *tiny, *SHORT, "--attacks", "clean", "--methods", "fgsm,sora", "--out", tmp_path / "c"
    )
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", done.err)
    for name in ("fgsm-s0", "sora-s0"):
        assert f"{name}: done" in plain
        assert re.search(rf"{name} .*100 %", plain)


LONG = ["--epochs", "100", "--eval-every", "0", "--attacks", "clean", "--no-snapshots", "--methods", "fgsm"]


def start_grid(*flags: str) -> tuple[subprocess.Popen[bytes], Path]:
    """A comparison in a process of its own, and its run, which has begun to train."""
    grid = subprocess.Popen([sys.executable, "-m", "sora", "compare", *flags], stderr=subprocess.DEVNULL)
    metrics = Path(flags[-1]) / "fgsm-s0" / "metrics.jsonl"
    while not metrics.exists() or not metrics.stat().st_size:
        assert grid.poll() is None
        time.sleep(0.05)
    return grid, metrics.parent


def test_a_grid_told_to_stop_takes_its_runs_with_it(tiny, tmp_path) -> None:
    grid, run = start_grid(*tiny, *LONG, "--epochs", "5000", "--out", str(tmp_path / "c"))
    grid.terminate()
    assert grid.wait() == 143
    assert list((run / "checkpoints").glob("step-*"))  # the run had time to write one
    size = (run / "metrics.jsonl").stat().st_size
    time.sleep(1.0)
    assert (run / "metrics.jsonl").stat().st_size == size  # and nobody trains on


def test_runs_of_a_killed_grid_end_and_the_next_grid_continues_them(sora, tiny, tmp_path) -> None:
    flags = [*tiny, *LONG, "--out", str(tmp_path / "c")]
    grid, run = start_grid(*flags)
    grid.kill()
    grid.wait()
    wait_until_free(run, 120)
    with locked_folder(run):  # the run has ended
        assert not (run / "summary.json").exists()
        checkpoints = RunFolder(run).checkpoints
        written = checkpoints.read(checkpoints.newest_first()[0])[1]["step"]
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"]
        assert written == last  # with a checkpoint of its very last step
    sora("compare", *flags, "--resume")
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 201))


def test_a_second_grid_in_the_same_folder_is_refused(sora, tiny, tmp_path) -> None:
    (tmp_path / "c").mkdir()
    with locked_folder(tmp_path / "c"):
        sora.refuse("in use by another process", "compare", *tiny, *LONG, "--out", tmp_path / "c", "--resume")
    assert [path.name for path in (tmp_path / "c").iterdir()] == [".lock"]


def test_finished_runs_are_compared_without_training(sora, tiny, tmp_path) -> None:
    for name, more in {"a": "", "b": "--method fgsm --guard rollback", "c": "--eps 0.1"}.items():
        sora("train", *tiny, *SHORT, *more.split(), "--out", tmp_path / name, "--quiet")
    table = sora.json("compare", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "both")
    assert list(table["methods"]) == ["sora", "fgsm + rollback"]
    summary = json.loads((tmp_path / "b" / "summary.json").read_text())
    entry = table["methods"]["fgsm + rollback"]
    assert entry["accuracy"]["pgd10"]["mean"] == summary["accuracy"]["pgd10"]
    assert json.loads((tmp_path / "both" / "comparison.json").read_text()) == table
    assert "fgsm + rollback" in sora("compare", tmp_path / "a", tmp_path / "b").out
    other = sora("compare", tmp_path / "a", tmp_path / "c").out  # the same method under another radius
    assert "a (sora)" in other
    assert "c (sora)" in other
    assert re.search(r"method +eps ", other)
    assert "linf eps" not in other
    sora.refuse("none", "compare", tmp_path / "a", tmp_path / "none")


VARIANTS = ["--variant", "no sampling: sora sora.sample=false batch-size=16"]
VARIANTS += ["--variant", "wide: fgsm eps=0.2"]


def test_named_variants_are_rows_and_comparisons_can_be_joined(sora, tiny, tmp_path) -> None:
    short = [*tiny, *SHORT, "--attacks", "clean"]
    done = sora("compare", *short, *VARIANTS, "--seeds", "2", "--out", tmp_path / "c")
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

    sora("compare", *short, *VARIANTS[:2], "--seed", "2", "--out", tmp_path / "d")
    rows = sora.json("compare", tmp_path / "c", tmp_path / "d", tmp_path / "c" / "wide-s0")["methods"]
    assert {name: row["seeds"] for name, row in rows.items()} == {"no sampling": [0, 1, 2], "wide": [0, 1]}
    sora("compare", *short, *VARIANTS[:2], "--out", tmp_path / "e")
    sora.refuse("are the same run", "compare", tmp_path / "c", tmp_path / "e")


def test_a_grid_file_names_rows(sora, tiny, tmp_path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(
        "settings: {epochs: 7}\nrows:\n  a: {method: fgsm, eps: 0.1}\n  b: {set: {sora.beta: 0.5}}\n"
    )
    done = sora("compare", "--dry-run", "--grid", file, "--out", tmp_path / "c")
    assert re.search(r"sora.beta: 0.5 +# variant b", done.out)
    assert done.out.count("epochs: 7") == 2
    flags = sora("compare", "--dry-run", "--grid", file, "--epochs", "3", "--out", tmp_path / "c")
    assert flags.out.count("epochs: 3") == 2


def test_a_grid_with_a_relative_data_folder_and_a_common_variant_is_continued(
    sora, tiny, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("variant: mine\n")
    flags = [*tiny, *SHORT, "--methods", "fgsm,sora", "--attacks", "clean", "--data-dir", "data"]
    flags += ["--config", "c.yaml", "--out", "c"]
    for more in ([], ["--resume"]):
        sora("compare", *flags, *more)
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
    sora.refuse(message, "compare", "--grid", tmp_path / "grid.yaml", "--out", tmp_path / "c")
    assert not (tmp_path / "c").exists()
