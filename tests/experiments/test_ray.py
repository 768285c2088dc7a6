"""A grid on a Ray cluster of this machine: the same bits, also after a worker was killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

FLAGS = (
    "compare --dataset digits --methods fgsm,sora --limit-train 400 --limit-test 40 --width 4 --epochs 12"
    " --batch-size 32 --attacks clean,fgsm,pgd10 --set model.stages=1 --checkpoint-every 5"
)


def sora(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sora", *FLAGS.split(), *arguments]
    return subprocess.Popen(command, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    assert process.returncode == 0, errors


def result(folder: Path) -> tuple[dict[str, bytes], object]:
    weights = {path.parent.name: path.read_bytes() for path in folder.glob("*/model.safetensors")}
    rows = json.loads((folder / "comparison.json").read_text())["methods"]
    return weights, {name: (row["accuracy"], row["verdict"], row["alarms"]) for name, row in rows.items()}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local") / "g"
    finish(sora("--out", str(folder), "--jobs", "2"))
    return folder


@pytest.mark.parametrize("flags", [[], ["--send-back"]])
def test_the_same_bits_and_the_same_table(flags: list[str], local: Path, tmp_path: Path) -> None:
    finish(sora("--out", str(tmp_path / "g"), "--engine", "ray", *flags))
    assert result(tmp_path / "g") == result(local)


def test_a_killed_worker_is_replaced(local: Path, tmp_path: Path) -> None:
    log = tmp_path / "g" / "sora-s0" / "metrics.jsonl"
    process = sora("--out", str(tmp_path / "g"), "--engine", "ray")
    while not (log.exists() and log.read_text().count("\n") > 5):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    trainer = int((log.parent / ".lock").read_text().split()[1])
    stat = Path(f"/proc/{trainer}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)  # the worker that started it
    finish(process)
    assert result(tmp_path / "g") == result(local)


def test_an_address_that_does_not_answer(tmp_path: Path) -> None:
    process = sora("--out", str(tmp_path / "g"), "--engine", "ray", "--address", "127.0.0.1:7")
    _, errors = process.communicate()
    assert process.returncode == 2
    assert "no Ray cluster answers at '127.0.0.1:7'" in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "g").exists()
