"""Two processes train what one would: the same gradients, the same coefficient, also after a kill."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import multiprocessing, nn
from torch.distributed import HashStore

from sora import methods
from sora._devices import versions
from sora.cli import main
from sora.errors import RunError, UserError
from sora.methods import Method
from sora.settings import Request, Settings
from sora.threat import Linf
from sora.training import Interrupted, train
from sora.training import distributed as training_distributed
from sora.training.distributed import RankBuffers, any_rank, mean_over_ranks, process_group, wrap
from sora.training.state import State
from tests.training.helpers import At

torch.set_num_threads(1)

BATCH, CLASSES = 8, 3
METHODS = ("sora", "elle", "gradalign", "fgsm-rs")
HYPER: dict[str, dict[str, Any]] = {"elle": {"adaptive": True}}


def small_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, CLASSES)]
    return nn.Sequential(*layers).double()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(BATCH, 2, 6, 6, generator=generator, dtype=torch.float64), torch.arange(BATCH) % CLASSES


def two_steps(model: nn.Module, inner: nn.Module, method: Method, share: slice) -> dict[str, Any]:
    """Two steps on a share of the same batch with the same noise for each image."""
    x, y = batch()
    torch.manual_seed(2)
    for _ in range(2):
        noise = tuple(part[share] for part in method.draw(x))
        inner.zero_grad()
        method.step(model, x[share], y[share], noise=noise)
        with torch.no_grad():
            for parameter in inner.parameters():
                parameter -= 0.5 * parameter.grad
    return {
        "gradients": [p.grad for p in inner.parameters()],
        "memory": [b for b in method.buffers() if b.is_floating_point()],
    }


def method_of(name: str) -> Method:
    return methods.create(name, Linf("8/255"), **HYPER.get(name, {})).double()


def joined(rank: int, port: int) -> AbstractContextManager[None]:
    """What torchrun and the trainer do to form a group of two."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return process_group(torch.device("cpu"))


def two_ranks_main(rank: int, port: int, folder: Path) -> None:
    """Do in each of two processes all that the tests look at."""
    torch.set_num_threads(1)
    with joined(rank, port):
        for name in METHODS:
            model = small_model()
            share = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
            found = two_steps(wrap(model), model, method_of(name), share)
            torch.save(found, folder / f"{name}-{rank}.pt")
        check_agreement(rank)
        train_and_stop(folder)
        cycle: list[Any] = [wrap(small_model())]
        cycle.append(cycle)
    del cycle, model
    atexit._run_exitfuncs()
    if sys.platform == "linux":  # no thread of the group is left when Python exits
        threads = [Path(f"/proc/self/task/{number}/comm") for number in os.listdir("/proc/self/task")]
        names = [thread.read_text() for thread in threads]
        assert not [name for name in names if "gloo" in name], names


def check_agreement(rank: int) -> None:
    """The ranks agree on averages and flags."""
    model = nn.BatchNorm1d(1)
    model.running_mean.fill_(float(rank))
    RankBuffers(State(model, None, None, None)).average()  # type: ignore[arg-type]
    assert float(model.running_mean) == 0.5
    lost = torch.tensor([float(rank), float("nan") if rank else 3.0])
    assert mean_over_ranks(lost.clone()).tolist() == [0.5, 3.0]
    found = mean_over_ranks(lost, required=torch.tensor([True, True]))
    assert found[0] == 0.5
    assert found[1].isnan()
    assert any_rank(rank == 1, torch.device("cpu"))
    assert not any_rank(False, torch.device("cpu"))


def stop_second_rank(run: Any, batch: Any) -> None:
    if run.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)


def train_and_stop(folder: Path) -> None:
    """Train undisturbed; train, stop in the middle of the second epoch and go on; stop once more."""

    def small(out: str) -> Settings:
        given = {"epochs": 2, "batch_size": 32, "width": 4, "limit_train": 96, "limit_test": 20}
        given |= {"holdout": 20, "log_every": 2, "attacks": ("clean",), "threads": 1, "device": "cpu"}
        return Request(given | {"set": {"model.stages": 1}, "out": str(folder / out)}).resolve().settings

    train(small("undisturbed"), quiet=True)
    for name in ("stopped", "world"):
        with pytest.raises(Interrupted):
            train(small(name), hooks=[At(3, stop_second_rank)], quiet=True)
    train(small("stopped"), quiet=True)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks left behind."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    multiprocessing.spawn(two_ranks_main, (port, folder), nprocs=2)
    return folder


@pytest.mark.parametrize("name", METHODS)
def test_two_ranks_give_the_gradients_of_one(two_ranks: Path, name: str) -> None:
    model = small_model()
    whole = two_steps(model, model, method_of(name), slice(0, BATCH))
    assert any(bool((g != 0).any()) for g in whole["gradients"])
    for rank in (0, 1):
        found = torch.load(two_ranks / f"{name}-{rank}.pt", weights_only=True)
        for kind in ("gradients", "memory"):
            for ours, theirs in zip(found[kind], whole[kind], strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_ranks_stopped_between_epochs_go_on_as_if_undisturbed(two_ranks: Path, capsys: Any) -> None:
    for name in ("model.safetensors", "metrics.jsonl", "evals.jsonl"):
        undisturbed = (two_ranks / "undisturbed" / name).read_bytes()
        assert (two_ranks / "stopped" / name).read_bytes() == undisturbed, name
    # Another number of processes is refused, unless it is allowed.
    resume = ["train", "--out", str(two_ranks / "world"), "--resume", "--quiet"]
    assert main(resume) == 2
    error = capsys.readouterr().err
    assert "was trained with 2 processes and would continue with 1 process" in error
    assert "--allow-world-change" in error
    assert not (two_ranks / "world" / "summary.json").exists()
    assert main([*resume, "--allow-world-change"]) == 0
    assert (two_ranks / "world" / "summary.json").exists()


def torchrun(out: Path) -> subprocess.Popen[str]:
    flags = "--dataset digits --width 4 --epochs 2 --batch-size 128 --limit-train 640 --limit-test 50"
    more = "--holdout 0 --attacks clean --checkpoint-every 1 --threads 1 --device cpu --quiet --out"
    ranks = "torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=3 -m sora train"
    command = [sys.executable, "-m", *ranks.split(), *flags.split(), *more.split(), str(out)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ranks_of(launcher: int) -> list[int]:
    """The processes a launcher has started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(child) for child in children]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")
def test_a_killed_rank_restarts_and_the_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    calm = torchrun(tmp_path / "calm")
    assert calm.wait(300) == 0, calm.stderr.read()  # type: ignore[union-attr]
    killed = torchrun(tmp_path / "killed")
    checkpoints = tmp_path / "killed" / "checkpoints"
    while killed.poll() is None and len(list(checkpoints.glob("step-*"))) < 2:
        time.sleep(0.01)
    os.kill(ranks_of(killed.pid)[1], signal.SIGKILL)
    _, errors = killed.communicate(timeout=400)
    assert killed.returncode == 0, errors
    assert "signal 9" in errors.lower() or "SIGKILL" in errors or "exitcode: -9" in errors
    a, b = (load_file(tmp_path / run / "model.safetensors") for run in ("calm", "killed"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    lines = (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == sorted(set(steps))
    assert steps[-1] == 10


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; use torchrun"),
        ({"RANK": ""}, "RANK is ''; use torchrun"),
        ({"RANK": "5"}, "RANK is 5 and WORLD_SIZE 2; allowed: ranks from 0 to 1"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is ''; use torchrun"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT is 'x'; use torchrun"),
    ],
)
def test_wrong_variables_of_the_launcher_are_refused(changes, wrong, monkeypatch) -> None:
    known = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29999"}
    for name, value in (known | changes).items():
        monkeypatch.setenv(name, value)
    refused = pytest.raises(UserError, match=wrong)
    with refused, process_group(torch.device("cpu")):
        pass


def silent_main(rank: int, port: int, folder: Path) -> None:
    """Join a group of two, in which the second process never answers."""
    training_distributed.PATIENCE = timedelta(seconds=2)
    try:
        with joined(rank, port):
            if rank == 1:
                time.sleep(60)
            any_rank(True, torch.device("cpu"))
    except RunError as error:
        (folder / "error").write_text(str(error))


def test_a_process_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=silent_main, args=(rank, port, tmp_path)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    ranks[0].join(60)
    ranks[1].kill()
    assert ranks[0].exitcode == 0
    assert (tmp_path / "error").read_text().startswith("another process ended or did not answer for 0:00:02")


def test_ranks_with_other_packages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    store.set("versions-0", "sora 0, torch 1")
    with pytest.raises(
        UserError, match=r"process 1 has sora .*, process 0 sora 0, torch 1; install the same"
    ):
        training_distributed._check_versions(store, 1, 2)
    monkeypatch.setattr(training_distributed, "versions", lambda: "sora 0, torch 1")
    store.set("versions-1", versions())
    with pytest.raises(UserError, match="process 0 has sora 0, torch 1, process 1 sora"):
        training_distributed._check_versions(store, 0, 2)
