"""`sora reproduce`, on digits and at toy size."""

import json

import pytest

from sora.experiments import cost, engines
from tests.experiments import in_process

SMALL = ["--seeds", "1", "--epochs", "1", "--width", "4", "--limit-train", "32", "--limit-test", "30"]
SMALL += ["--threads", "1", "--jobs", "2"]

pytestmark = pytest.mark.usefixtures("grid_in_process")


def test_a_table_is_computed_once_and_printed_beside_the_papers(sora, tmp_path) -> None:
    out = tmp_path / "c"
    flags = ["components", "--dataset", "digits", "--methods", "sora,no-sampling", *SMALL, "--out", str(out)]
    flags += ["--attacks", "clean,fgsm,pgd10"]
    done = sora("reproduce", *flags)
    assert "differs from the paper: epochs 1 (full: 20), width 4 (full: 16), training images 32" in done.out
    assert "paper: pathmnist, preactresnet18 (the paper has no digits, preactresnet18)" in done.out
    assert "84.69" in done.out
    assert "order by clean" in done.out
    assert "diff." not in done.out
    table = json.loads((out / "components.json").read_text())
    assert table["rows"]["sora"]["clean"]["paper"]["mean"] == 84.69
    assert len(table["rows"]["sora"]["clean"]["ours"]["values"]) == 1
    for ending in ("csv", "md", "tex"):
        assert "no-sampling" in (out / f"components.{ending}").read_text()

    weights = out / "no-sampling-s0" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    sora("evaluate", out / "no-sampling-s0", "--attacks", "apgd-ce", "--quiet", "--threads", "1")
    row = sora.json("reproduce", *flags)["rows"]["no-sampling"]["apgd-ce"]
    assert weights.stat().st_mtime_ns == before
    assert (len(row["ours"]["values"]), row["paper"]) == (1, None)

    sora.refuse("sora evaluate", "reproduce", *flags[:-1], "clean")
    (out / "sora-s0" / "config.yaml").write_text("{")
    sora.refuse(f"delete {out / 'sora-s0'} and repeat the command", "reproduce", *flags, code=1)


def test_gaps_come_from_the_runs_of_the_main_table(sora, tmp_path) -> None:
    common = ["--dataset", "digits", *SMALL, "--out", tmp_path / "m"]
    empty = sora("reproduce", "gap", *common)
    assert "no finished runs" in empty.out
    assert "-48.34" in empty.out
    rows = ["--methods", "fgsm,sora", "--attacks", "clean,fgsm"]
    sora("reproduce", "main", *common, *rows, "--quiet")
    table = sora.json("reproduce", "gap", *common, *rows)["rows"]
    clean = {row: table[row]["clean"]["ours"]["mean"] for row in ("fgsm", "sora")}
    assert table["fgsm"]["clean-gap"]["ours"]["mean"] == pytest.approx(clean["fgsm"] - clean["sora"])
    assert table["fgsm"]["clean-gap"]["paper"]["mean"] == -48.34
    default = sora.json("reproduce", "gap", *common)["rows"]  # main's attacks are not those of gap
    assert default["fgsm"]["clean-gap"]["ours"]["values"] == [pytest.approx(clean["fgsm"] - clean["sora"])]
    sora.refuse("dataset 'digits' -> 'pathmnist'", "reproduce", "gap", *SMALL, "--out", tmp_path / "m")


def test_one_training_is_attacked_at_several_radii(sora, tmp_path) -> None:
    flags = ["--dataset", "digits", *SMALL, "--methods", "sora", "--attacks", "fgsm", "--out", tmp_path / "e"]
    row = sora.json("reproduce", "test-eps", *flags, "--quiet")["rows"]["sora"]
    assert [metric for metric in row if row[metric]["ours"]["values"]] == [
        f"fgsm@{level}/255" for level in (3, 5, 9, 13, 17)
    ]


def test_the_benchmark_is_printed_beside_ours(sora, tmp_path) -> None:
    flags = ["fastat", "--dataset", "digits", "--methods", "liet,sora", *SMALL]
    done = sora("reproduce", *flags, "--attacks", "clean,pgd10", "--out", tmp_path / "f", "--quiet")
    assert "ours: digits, resnet18, 1 seed, weights chosen on held-out training images" in done.out
    assert "differs from the benchmark: epochs 1 (full: 100)" in done.out
    assert "benchmark: cifar10, resnet18 (the benchmark has no digits, resnet18); fastat" in done.out
    assert "80.68 ± 0.51" in done.out
    assert "not in the benchmark" in done.out  # SORA
    assert "paper" not in done.out
    table = json.loads((tmp_path / "f" / "fastat.json").read_text())
    assert table["source"] == "benchmark"
    assert table["rows"]["liet"]["clean"]["paper"]["mean"] == 80.68
    assert len(table["rows"]["sora"]["pgd10"]["ours"]["values"]) == 1


def test_costs_are_measured_and_data_sets_described(sora, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SORA_DATA", str(tmp_path / "none"))
    flags = ["--width", "4", "--methods", "fgsm,pgd-2", "--out", tmp_path / "c", "--json"]
    done = sora("reproduce", "cost", *flags)
    row = json.loads(done.out)["rows"]["pgd-2"]
    texts = [row[key]["ours"]["text"] for key in ("type", "forwards", "backwards")]
    assert texts == ["Multi-Step", "3", "3"]
    done = sora("reproduce", "datasets", "--out", tmp_path / "d")
    assert "3x224x224" in done.out


def test_a_dry_run_estimates_from_measured_steps(sora, tmp_path) -> None:
    flags = ["--dataset", "digits", *SMALL, "--out", tmp_path / "c"]
    done = sora("reproduce", "components", *flags, "--dry-run")
    assert "4 runs in" in done.out
    assert "a step of sora on preactresnet18" in done.out
    assert not (tmp_path / "c").exists()


def test_a_dry_run_prints_the_batch_files_of_slurm(sora, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(engines.ENGINES, "slurm", in_process.__name__)
    monkeypatch.setattr(cost, "estimate", lambda runs, jobs, progress: cost.Estimate(1, 1))
    monkeypatch.setattr(in_process.InProcess, "describe", lambda engine, work: f"batch file of {work.name}")
    flags = ["--dataset", "digits", *SMALL, "--out", tmp_path / "c", "--dry-run", "--engine", "slurm"]
    done = sora("reproduce", "components", *flags)
    files = [f"batch file of {name}-s0" for name in ("sora", "no-sampling")]
    assert all(file in done.out.splitlines() for file in files)
    found = sora.json("reproduce", "components", *flags)
    assert found["batch_files"][:2] == files


def test_every_table_is_listed(sora) -> None:
    from sora.experiments import paper

    listed = sora.json("reproduce", "--list")
    assert [row["table"] for row in listed] == paper.names()
    assert "brittleness-aaer" in sora("reproduce", "--list").out
