"""Engines: where the runs of a grid are computed."""

import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from sora._devices import versions
from sora._process import start_child
from sora.errors import UserError
from sora.experiments import engines
from sora.experiments.engines import Ended, Process, Work
from sora.experiments.grid import GridInterrupted, run_grid
from sora.runs import RunFolder
from sora.settings import Request, Resolved
from tests.experiments.in_process import Done, InProcess

TINY = {"dataset": "digits", "method": "fgsm", "limit_train": 32, "limit_test": 20, "holdout": 20, "width": 4}
TINY |= {"set": {"model.stages": 1}, "epochs": 1, "batch_size": 16, "attacks": "clean"}


def runs(folder: Path, count: int) -> list[Resolved]:
    return [
        Request({**TINY, "seed": seed, "out": str(folder / f"fgsm-s{seed}")}).resolve()
        for seed in range(count)
    ]


def test_an_engine_computes_what_is_not_finished(tmp_path: Path) -> None:
    first, again = InProcess(lambda work: "no room" if work.name == "fgsm-s1" else ""), InProcess()
    grid = run_grid(runs(tmp_path, 3), quiet=True, engine=first)
    assert [job.error for job in grid] == ["", "no room", ""]
    assert [RunFolder(tmp_path / f"fgsm-s{seed}").is_finished() for seed in range(3)] == [True, False, True]
    assert not (tmp_path / "fgsm-s1.yaml").exists()
    grid = run_grid(runs(tmp_path, 3), quiet=True, engine=again)
    assert (first.started, again.started) == (["fgsm-s0", "fgsm-s1", "fgsm-s2"], ["fgsm-s1"])
    assert [job.error for job in grid] == ["", "", ""]
    assert RunFolder(tmp_path / "fgsm-s0").read_settings().threads == 1


def test_ctrl_c_says_what_is_kept_and_how_to_continue(tmp_path: Path) -> None:
    stopped = []

    class Interrupted(Done):
        def ended(self) -> Ended:
            raise KeyboardInterrupt

        def stop(self) -> None:
            stopped.append(True)

    class Engine(InProcess):
        def start(self, work: Work) -> Done:
            return super().start(work) if work.name == "fgsm-s0" else Interrupted(Ended(0, ""))

    with pytest.raises(GridInterrupted, match=r"1 of 2 runs are finished.*--resume") as caught:
        run_grid(runs(tmp_path, 2), quiet=True, engine=Engine())
    assert caught.value.exit_code == 130
    assert stopped == [True]


def test_an_unknown_engine_suggests_the_nearest_and_a_missing_extra_is_named(monkeypatch) -> None:
    nearest = r"--engine is 'rya'; did you mean 'ray'\? allowed: local, ray, slurm"
    with pytest.raises(UserError, match=nearest):
        engines.create("rya")
    monkeypatch.setitem(engines.ENGINES, "ray", "nothing_here")
    missing = r"needs a package that is not installed .*pip install 'sora-at\[ray\]'"
    with pytest.raises(UserError, match=missing):
        engines.create("ray")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--address auto", "--address requires --engine ray"),
        ("--engine slurm --send-back", "--send-back requires --engine ray"),
        ("--slurm time=5", "--slurm requires --engine slurm"),
        ("--cpus-per-run 0", "--cpus-per-run must be 1 or more"),
        ("--gpus-per-run 1", "--gpus-per-run require --engine ray or slurm"),
        ("--engine slurm --gpus-per-run 0.5", "--gpus-per-run is 0.5; Slurm gives a run whole GPUs only"),
        ("--engine nothing", "allowed: local, ray, slurm"),
    ],
)
@pytest.mark.parametrize(
    "verb",
    [
        "compare --methods fgsm",
        "compare --methods fgsm --dry-run",
        "reproduce components --dataset digits",
        "reproduce components --dataset digits --dry-run",
    ],
)
def test_mistakes_are_one_line_and_write_nothing(verb, flags, message, sora, tmp_path) -> None:
    sora.refuse(message, *verb.split(), "--out", tmp_path / "g", *flags.split())
    assert not (tmp_path / "g").exists()


def test_slurm_shows_its_batch_files(tmp_path: Path) -> None:
    engine = engines.create("slurm", cpus=4, gpus=1, slurm="partition=gpu,time=60")
    work = Work("fgsm-s0", ["--data-dir", "/data"], tmp_path / "fgsm-s0.yaml", tmp_path / "fgsm-s0")
    text = engine.describe(work)
    for line in ("--cpus-per-task=4", "--gres=gpu:1", "--partition=gpu", "--time=60", "--job-name=fgsm-s0"):
        assert f"#SBATCH {line}\n" in text
    command = (
        f"-m sora train --config {work.settings} --out {work.folder} --resume auto --quiet --data-dir /data"
    )
    assert f"exec {sys.executable} {command}\n" in text
    with pytest.raises(UserError, match="--slurm takes NAME=VALUE"):
        engines.create("slurm", slurm="gpu")


class FakeSlurm:
    """Jobs in the order of their numbers, with their states, and the exit code that Slurm shows."""

    def __init__(self, states: list[str], code: int = 0) -> None:
        self.states, self.code, self.submitted = states, code, 0

    def __call__(self, *command: str, text: str = "") -> str:
        if command[0] == "sbatch":
            self.submitted += 1
            self.folder = text.partition("--comment=")[2].partition("\n")[0]
            return f"{self.submitted};cluster\n"
        if command[0] == "scontrol":
            return f"JobId=1 ExitCode={self.code}:0 Requeue=1"
        return "".join(f"{n}|{self.states[n - 1]}|{self.folder}\n" for n in range(self.submitted, 0, -1))


@pytest.mark.parametrize(
    ("states", "code", "submitted", "error"),
    [
        (["RUNNING"], 0, 1, None),
        (["REQUEUED"], 0, 1, None),
        (["CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "RUNNING"], 0, 5, None),
        (["FAILED", "RUNNING"], 143, 2, None),  # ended by SIGTERM
        (["FAILED"], 1, 1, "the reason"),
        (["TIMEOUT"] * 5, 0, 5, r"5 Slurm jobs ended before the run, the last \(5\) as TIMEOUT"),
    ],
)
def test_a_job_that_ends_without_its_runs_fault_is_replaced(
    states: list[str],
    code: int,
    submitted: int,
    error: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sora.experiments.engines import on_slurm

    fake = FakeSlurm(states, code)
    monkeypatch.setattr(on_slurm, "_slurm", fake)
    monkeypatch.setattr(on_slurm, "POLL", -1.0)
    work = Work("fgsm-s0", [], tmp_path / "fgsm-s0.yaml", tmp_path / "fgsm-s0")
    engine = engines.create("slurm")
    fake.folder = ""
    job = engine.start(work)
    (tmp_path / "slurm" / "fgsm-s0.log").write_text("something\nthe reason\n")
    ended = [job.ended() for _ in range(6)][-1]
    assert fake.submitted == submitted
    if error is None:
        assert ended is None
        assert engine.start(work).ended() is None  # the same command again finds the job
        assert fake.submitted == submitted
    else:
        assert ended is not None
        assert ended.code == 1
        assert re.fullmatch(error, ended.error)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("1:30", 90), ("1:0:5", 3605), ("1-2", 93600), ("1-2:3", 93780), ("", None), ("x", None)],
)
def test_time_limits_of_slurm(text: str, seconds: float | None) -> None:
    from sora.experiments.engines.on_slurm import seconds_of

    assert seconds_of(text) == seconds


def test_slurm_must_be_here_and_its_time_limit_long_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.create("slurm", slurm="time=0:0:1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs sbatch, which is not here"):
        run_grid(runs(tmp_path, 1), engine=engine)
    monkeypatch.setattr(engine, "check", lambda: None)
    monkeypatch.setattr("sora.experiments.cost._seconds_of_step", lambda settings, bench: 16.0)
    with pytest.raises(UserError, match=r"an epoch of fgsm-s0 takes about 0.5 minutes here, .* is 0.0166667"):
        run_grid(runs(tmp_path, 1), engine=engine)
    assert not any(tmp_path.iterdir())


def process_of(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    """The process of a run that executes some code instead."""

    def start(command: list[str], environment: dict[str, str], **options: Any) -> Any:
        return start_child([sys.executable, "-c", f"import sys; {code}"], environment, **options)

    monkeypatch.setattr(engines, "start_child", start)
    return Process(Work("a", [], folder / "a.yaml", folder / "a"))


def test_a_run_that_writes_more_than_a_pipe_holds_ends(tmp_path: Path, monkeypatch) -> None:
    talkative = "sys.stderr.write('warning\\n' * 50_000 + 'the reason\\n'); sys.exit(3)"
    process, ended = process_of(talkative, tmp_path, monkeypatch), None
    deadline = time.monotonic() + 60
    while ended is None and time.monotonic() < deadline:
        ended = process.ended()
    process.stop()
    assert ended == Ended(3, "the reason")


def test_one_machine_of_a_ray_cluster_must_be_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from sora.experiments.engines import on_ray

    resources = [({"CPU": 2.0, "GPU": 1.0}, True), ({"CPU": 4.0}, True), ({"CPU": 16.0, "GPU": 4.0}, False)]
    nodes = [{"Resources": own, "Alive": alive} for own, alive in resources]
    monkeypatch.setattr(on_ray.ray, "nodes", lambda: nodes)
    for cpus, gpus in ((2, 1.0), (4, 0.0), (1, 0.5)):
        on_ray.OnRay(cpus, gpus, False).check()
    for cpus, gpus in ((6, 0.0), (4, 1.0), (1, 2.0)):
        with pytest.raises(
            UserError, match=rf"a run needs {cpus} CPUs and {gpus:g} GPUs .*: 2 and 1, 4 and 0"
        ):
            on_ray.OnRay(cpus, gpus, False).check()


@pytest.mark.parametrize("code", [0, 1])
def test_a_run_that_was_sent_back_leaves_nothing_on_the_worker(code: int, tmp_path, monkeypatch) -> None:
    pytest.importorskip("ray")
    from sora.experiments.engines import on_ray

    def train(work: Work) -> Ended:
        work.folder.mkdir(exist_ok=True)
        (work.folder / "summary.json").write_text(work.settings.read_text())
        return Ended(code, "")

    monkeypatch.setattr(on_ray, "train_on_cluster", train)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "worker"))
    (tmp_path / "worker").mkdir()
    work = Work("fgsm-s0", [], tmp_path / "fgsm-s0.yaml", tmp_path / "fgsm-s0")
    ended, packed = on_ray._compute_elsewhere(work, "method: fgsm", versions())
    assert ended == (code, "")
    on_ray._unpack(packed, tmp_path / "here")
    assert (tmp_path / "here" / "summary.json").read_text() == "method: fgsm"
    other, nothing = on_ray._compute_elsewhere(work, "method: fgsm", "sora 0, torch 1")
    assert other.code == 2
    assert re.search(r" has sora .*, torch .*, this command sora 0, torch 1; install the same", other.error)
    assert nothing is None
    kept = list((tmp_path / "worker").glob("*/fgsm-s0"))
    assert bool(kept) == bool(code)  # a run that failed continues from its checkpoints


@pytest.mark.skipif(sys.platform != "linux", reason="counts the files in /proc")
def test_a_finished_run_leaves_no_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    process = process_of("sys.exit('the reason')", tmp_path, monkeypatch)
    assert process.wait() == Ended(1, "the reason")
    assert process.wait() == process.ended() == Ended(1, "the reason")
    process.stop()
    assert len(os.listdir("/proc/self/fd")) == before
