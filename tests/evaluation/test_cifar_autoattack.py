"""AutoAttack on a CIFAR-10 model by the command line: against the original classes, killed, on two ranks.

Needs CIFAR-10 under $SORA_DATA. $SORA_TEST_RUN names a finished width-16 run to use; without it a short one
is trained.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import sora
from sora.cli import main
from sora.evaluation.records import restore
from sora.runs import RunFolder
from sora.threat import Linf

pytestmark = pytest.mark.slow

IMAGES, BATCH = 100, 50
FLAGS = ["--limit", str(IMAGES), "--batch-size", str(BATCH), "--threads", "1", "--attacks", "clean,pgd10,aa"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "SORA_TEST_RUN" in os.environ:
        return Path(os.environ["SORA_TEST_RUN"])
    folder = tmp_path_factory.mktemp("cifar") / "run"
    flags = (
        "--dataset cifar10 --width 16 --method sora --epochs 4 --limit-train 5000 --limit-test 100 --quiet"
    )
    if main(["train", *flags.split(), "--holdout", "100", "--out", str(folder)]) != 0:
        pytest.skip("CIFAR-10 is not here; name its folder in $SORA_DATA")
    return folder


def images() -> tuple[torch.Tensor, torch.Tensor]:
    chosen = sora.data.split(sora.data.load("cifar10"), holdout=0, limit_test=IMAGES).test
    ((x, y),) = chosen.batches(IMAGES)
    return x.contiguous(), y


def robust(folder: Path) -> torch.Tensor:
    (record,) = RunFolder(folder).read_evaluations()
    return restore(record, images()[1], Linf("8/255")).robust["aa"]


@pytest.fixture(scope="module")
def expected(run: Path, tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """The robust set found by one process that was not interrupted."""
    folder = tmp_path_factory.mktemp("alone")
    assert main(["evaluate", str(run), *FLAGS, "--out", str(folder), "--json"]) == 0
    return robust(folder)


def command(run: Path, folder: Path, *launcher: str) -> list[str]:
    verb = ["-m", "sora", "evaluate", str(run), *FLAGS, "--out", str(folder), "--json"]
    return [sys.executable, *launcher, *verb]


def test_it_is_the_set_of_the_packages_own_attacks(
    run: Path, expected: torch.Tensor, autoattack_by_hand: Callable[..., Any]
) -> None:
    torch.set_num_threads(1)
    x, y = images()
    reference = autoattack_by_hand(sora.load(run), x, y, 8 / 255, batch_size=BATCH, seed=0, targets=9)
    assert torch.equal(expected, reference["square"])
    assert 0 < int(expected.sum()) < int(reference["clean"].sum())


def test_killed_three_times_it_ends_with_the_same_set(
    run: Path, expected: torch.Tensor, tmp_path: Path
) -> None:
    draw = random.Random(0)
    for _ in range(3):
        process = subprocess.Popen(command(run, tmp_path), stdout=subprocess.DEVNULL)
        enough = len(list(tmp_path.rglob("*.safetensors"))) + 2
        while process.poll() is None and len(list(tmp_path.rglob("*.safetensors"))) < enough:
            time.sleep(0.1)
        time.sleep(draw.uniform(0, 3))  # somewhere inside the next unit
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "evaluation.json").exists()
    subprocess.run(command(run, tmp_path), check=True, stdout=subprocess.DEVNULL)
    assert torch.equal(robust(tmp_path), expected)


def test_two_ranks_find_the_same_set(run: Path, expected: torch.Tensor, tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    printed = subprocess.run(command(run, tmp_path, *launcher), check=True, capture_output=True, text=True)
    assert torch.equal(robust(tmp_path), expected)
    (record,) = json.loads(printed.stdout)
    assert record["accuracy"]["aa"] == int(expected.sum()) / IMAGES
    assert record["accuracy"]["aa"] <= record["accuracy"]["pgd10"] + 1 / 200
