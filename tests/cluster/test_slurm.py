"""A grid on a real Slurm of two nodes: whatever happens to a job, its run ends with a local one's bits."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import slurm
from tests.cluster.conftest import PATIENCE, RUN, compare, done, underway, wait_until, weights

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(slurm.missing()), reason=f"not installed: {', '.join(slurm.missing())}"),
]


@pytest.fixture(scope="module", autouse=True)
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with slurm.cluster(tmp_path_factory.mktemp("slurm")):
        yield


def on_slurm(out: Path, *flags: str) -> subprocess.Popen[str]:
    return compare(out, "--engine", "slurm", *flags)


def tool(*command: str) -> str:
    return subprocess.run(command, text=True, capture_output=True, check=True, timeout=PATIENCE).stdout


def job(state: str = "RUNNING", format: str = "%i") -> str:
    """Wait for a job in this state; its number."""
    command = ("squeue", "--me", "--noheader", f"--states={state}", f"--format={format}")
    return str(wait_until(lambda: tool(*command).split())[0])


def cancel() -> None:
    tool("scancel", job())


def requeue() -> None:
    tool("scontrol", "requeue", job())


def reach_the_time_limit() -> None:
    """Stop the run until Slurm, which looks at time limits every half minute, ends its job of one minute."""
    first = job()
    os.kill(int(tool("scontrol", "listpids", first).splitlines()[1].split()[0]), signal.SIGSTOP)
    assert job("TIMEOUT") == first


def lose_the_node() -> None:
    node = job(format="%N")
    tool("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    time.sleep(5)
    subprocess.run(
        ["scontrol", "update", f"NodeName={node}", "State=RESUME"]
    )  # if it has not come back itself


@pytest.mark.parametrize("happens", [cancel, requeue, reach_the_time_limit, lose_the_node])
def test_the_run_continues(happens: Callable[[], None], local: dict[str, bytes], tmp_path: Path) -> None:
    process = on_slurm(tmp_path / "g", *(["--slurm", "time=1"] if happens is reach_the_time_limit else []))
    underway(tmp_path / "g" / "fgsm-s0", process)
    happens()
    errors = done(process)
    assert weights(tmp_path / "g")["fgsm-s0"] == local["fgsm-s0"], errors
    assert errors.count("warning") == 0
    queued_by_slurm = happens in (requeue, lose_the_node)
    assert queued_by_slurm or re.search(
        r"fgsm-s0: Slurm job \d+ ended as \w+; it continues as job \d+ \(2 of 5\)", errors
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_same_command_collects(number: int, local: dict[str, bytes], tmp_path: Path) -> None:
    process = on_slurm(tmp_path / "g")
    underway(tmp_path / "g" / "fgsm-s0", process)
    first = job()
    process.send_signal(number)
    errors = process.communicate(timeout=PATIENCE)[1]
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "0 of 1 runs are finished, the others go on in Slurm" in errors
        assert "repeat the command to collect them" in errors
    assert job() == first  # still running
    errors = done(on_slurm(tmp_path / "g", "--resume"))
    assert weights(tmp_path / "g")["fgsm-s0"] == local["fgsm-s0"]
    mine = tool("squeue", "--me", "--states=all", "--noheader", "--format=%k").split()
    assert mine.count(str(tmp_path / "g" / "fgsm-s0")) == 1  # one job did it all


def test_a_run_that_fails_by_itself_is_reported_at_once(tmp_path: Path) -> None:
    errors = done(on_slurm(tmp_path / "g", "--lr", "1e30"), code=1)
    assert "not finite" in errors
    assert "it continues" not in errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("partition=nowhere", "--slurm: sbatch: error: invalid partition specified: nowhere"),
        ("nothing=1", "--slurm: sbatch: unrecognized option '--nothing=1'"),
    ],
)
def test_what_slurm_refuses_is_said_before_anything_is_written(
    options: str, message: str, tmp_path: Path
) -> None:
    errors = done(on_slurm(tmp_path / "g", "--slurm", options), code=2)
    assert message in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "g").exists()


def test_a_time_limit_shorter_than_an_epoch(tmp_path: Path) -> None:
    flags = ["--limit-train", "1400", "--width", "64", "--set", "model.stages=4", "--methods", "pgd-10"]
    errors = done(on_slurm(tmp_path / "g", "--slurm", "time=0:1", *flags), code=2)
    assert "an epoch of pgd-10-s0 takes about" in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "g").exists()


def test_one_run_over_two_nodes(tmp_path: Path) -> None:
    """The batch file of docs/cluster.md gives the weights of two processes on one node."""
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    text = re.search(r"```bash\n(#!/bin/bash\n.*?)```", page, re.DOTALL)[1]  # type: ignore[index]
    own = RUN.replace("--epochs 20", "--epochs 2") + " --method fgsm --device cpu"
    text = re.sub(r"--dataset \S+", own, text).replace("runs/large", f"{tmp_path}/two")
    text = (
        text.replace("--gpus-per-node=4 ", "")
        .replace("NPROC=4", "NPROC=1")
        .replace("--cpus-per-task=16", "--cpus-per-task=1")
    )
    text = text.replace("$MASTER", "127.0.0.1").replace(
        "torchrun", str(Path(sys.executable).with_name("torchrun"))
    )
    (tmp_path / "run.sh").write_text(text)
    tool("sbatch", "--wait", f"--output={tmp_path}/out.txt", str(tmp_path / "run.sh"))
    one = [
        "--nproc-per-node",
        "2",
        "--standalone",
        "-m",
        "sora",
        "train",
        *own.split(),
        "--out",
        f"{tmp_path}/one",
    ]
    subprocess.run([Path(sys.executable).with_name("torchrun"), *one], check=True, capture_output=True)
    found = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert found[0] == found[1]
