"""`sora train`: what it writes, and the one line for every mistake."""

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_train_writes_a_run_and_json_is_its_summary(sora, tiny, tmp_path) -> None:
    printed = sora.json("train", *tiny, "--out", tmp_path / "a", "--quiet", "--resume", "auto")
    stored = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert printed == {key: value for key, value in stored.items() if key != "blake2b"}


@pytest.mark.parametrize("command", ["train --out", "compare --out", "evaluate", "report", "report . --out"])
def test_a_name_that_is_not_utf8_is_refused_at_the_start(command: str, sora, tmp_path) -> None:
    error = sora.refuse("", *command.split(), tmp_path / "run\udcff")  # the byte 0xff, as Python receives it
    assert re.fullmatch(r"sora: \S+ is '.*run\\udcff'; expected text in UTF-8\n", error)
    assert list(tmp_path.iterdir()) == []


def test_table_has_accuracy_interval_and_n(sora, tiny, tmp_path) -> None:
    done = sora("train", *tiny, "--out", tmp_path / "a")
    for word in ("clean", "pgd10", "95 % interval", "40", "eps 0.15"):
        assert word in done.out
    assert "recipe: digits" in done.err
    assert "epoch 2/2  held out (n=20)" in done.err
    table = [line for line in done.out.splitlines() if line.startswith("│")]
    again = sora("evaluate", tmp_path / "a", "--quiet", "--threads", "1").out
    assert table == [line for line in again.splitlines() if line.startswith("│")]


def test_resume_of_a_finished_run_removes_what_a_kill_left(sora, run) -> None:
    """A kill after `summary.json` was renamed into place and before its scratch folder was removed."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    host = re.sub(r"\W", "_", platform.node()) or "unknown"
    leftover = run / f".sora-{host}-{process.pid}-0123456789abcdef.tmp"
    leftover.mkdir()
    sora("train", "--out", run, "--resume")
    assert not leftover.exists()


@pytest.mark.parametrize(
    "flags", ["--resume", "--resume auto", "--resume=auto", "--resume --threads 2", "--dry-run"]
)
def test_a_finished_run_is_left_as_it_was(flags, sora, run) -> None:
    before = files(run)
    done = sora("train", "--out", run, *flags.split())
    assert ("finished" in done.err) == ("--resume" in flags)
    assert files(run) == before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--resume --eps 0.2", "eps '0.15' -> '0.2'"),
        ("--resume --epochs 9", "epochs 2 -> 9"),
        ("--resume --method fgsm", "method 'sora' -> 'fgsm'"),
        ("--resume --set sora.beta=0.5", "'sora.beta': 0.5"),
        ("--epochs 9", "already holds a run"),
        ("--method sroa", "did you mean 'sora'"),  # mistakes come before a used folder
    ],
)
def test_a_used_folder_is_refused_and_left_as_it_was(flags, words, sora, run) -> None:
    before = files(run)
    sora.refuse(words, "train", "--out", run, *flags.split())
    assert files(run) == before


def test_dry_run_prints_settings_and_writes_nothing(sora, tmp_path) -> None:
    import yaml

    done = sora("train", "--method", "n-fgsm", "--set", "n-fgsm.k=1", "--out", tmp_path / "a", "--dry-run")
    threat = yaml.safe_load(done.out)["threat"]
    assert (threat["method"], threat["set"]["n-fgsm.k"], threat["eps"]) == ("n-fgsm", 1.0, "0.15")
    origins = {line.split(":")[0].strip(): line.partition("# ")[2] for line in done.out.splitlines()}
    assert (origins["n-fgsm.k"], origins["eps"], origins["momentum"]) == ("flag", "recipe digits", "default")
    assert not (tmp_path / "a").exists()


def test_help_shows_groups_resume_and_recipe(sora) -> None:
    done = sora("train", "--help")
    for text in ("--resume [auto]", "--recipe", "--debug", "data options", "machine options"):
        assert text in done.out


def test_a_network_with_its_own_recipe_is_announced(sora, tmp_path) -> None:
    flags = ["--dataset", "cifar10", "--model", "vit-small", "--out", tmp_path / "a", "--dry-run"]
    done = sora("train", *flags)
    assert "# recipe cifar10" in done.out
    assert "optimizer: sgd" in done.out


def test_the_sora_command_as_a_process(tmp_path) -> None:
    command = [sys.executable, "-m", "sora", "train", "--method", "sroa", "--out", str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("sora: unknown method 'sroa'")
    assert done.stderr.count("\n") == 1


def test_a_recipe_of_another_network_is_said(sora, tmp_path) -> None:
    flags = ["--epochs", "1", "--limit-train", "32", "--limit-test", "20", "--holdout", "0", "--threads", "1"]
    flags += ["--eval-every", "0", "--attacks", "clean", "--batch-size", "16"]
    vit = ["--model", "vit-small", "--set", "model.depth=1", "--width", "12"]
    done = sora("train", *flags, *vit, "--out", tmp_path / "a")
    assert "no verdict" in done.out  # neither FGSM nor PGD-10 was run
    assert "recipe: digits (made for preactresnet18, not for vit-small; --recipe vit-adamw" in done.err


def test_a_resumed_run_says_from_which_step(sora, run) -> None:
    (run / "summary.json").unlink()
    done = sora("train", "--out", run, "--resume")
    assert "resuming from step 4" in done.err


def test_a_run_on_relative_data_is_evaluated_from_another_folder(sora, tiny, tmp_path, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"{split}_images": rng.integers(0, 256, (40, 8, 8, 1), np.uint8) for split in ("train", "test")}
    labels = {f"{split}_labels": np.arange(40) % 10 for split in ("train", "test")}
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    np.savez("mine.npz", **arrays, **labels)
    flags = ["--dataset", "npz:mine.npz", "--data-dir", "cache", "--limit-train", "20", "--limit-test", "10"]
    flags += ["--holdout", "10", "--epochs", "1", "--attacks", "clean", "--batch-size", "16"]
    done = sora("train", *tiny, *flags, "--out", tmp_path / "a", "--quiet")
    monkeypatch.chdir(tmp_path / "there")
    done = sora("evaluate", tmp_path / "a", "--attacks", "clean", "--json")
    assert json.loads(done.out)[0]["dataset"] == "npz:mine.npz"
