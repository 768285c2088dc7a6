"""Runs as tasks of a Ray cluster (the extra `ray`).

A task starts the same process as the local engine does, on whatever machine Ray chooses, and so computes the
same bits. If the worker dies, Ray starts the task again, which continues the run from its checkpoint.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import shutil
import socket
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from sora._devices import versions
from sora._files import write_text
from sora.errors import UserError
from sora.experiments.engines import Ended, Engine, Work, train_on_cluster

RETRIES = 5  # of a task whose worker died
CONNECTING = 5.0  # seconds


def build(
    address: str | None = None, cpus: int = 1, gpus: float = 0, send_back: bool = False, **_: object
) -> OnRay:
    """Connect to the cluster at `auto`, `HOST:PORT` or `ray://HOST:PORT`, or start one on this machine.

    A run gets so many cores and GPUs, also fractions. With `send_back` the machines share no folder: each
    computes in its own and sends the result back.
    """
    if address is not None:
        _check_address(address)
    try:
        quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        ray.init(address or "local", **quiet, **({} if address else {"include_dashboard": False}))
    except (ConnectionError, TimeoutError, RuntimeError, ValueError, OSError) as error:
        raise _no_answer(address, error) from None
    return OnRay(cpus, gpus, send_back)


def _check_address(address: str) -> None:
    """Raise at once if nothing answers there; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return  # `auto`
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECTING):
            pass
    except (OSError, ValueError, OverflowError) as error:
        raise _no_answer(address, error) from None


def _no_answer(address: str | None, error: Exception) -> UserError:
    return UserError(
        f"no Ray cluster answers at {address!r} ({' '.join(str(error).split())[:200]}); start one with"
        " `ray start --head` and pass --address auto, or leave out --address to start one here"
    )


class OnRay(Engine):
    """Tasks with resources of their own; Ray decides when and where each runs."""

    jobs: int | None = 10_000  # everything is queued at once

    def __init__(self, cpus: int, gpus: float, send_back: bool) -> None:
        self.threads: int | None = cpus
        self._cpus, self._gpus, self._send_back = cpus, gpus, send_back
        options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": RETRIES}
        self._task = ray.remote(**options)(_compute_elsewhere if send_back else _compute)

    def check(self) -> None:
        """Raise if no machine of the cluster could ever run a task."""
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        sizes = [(machine.get("CPU", 0), machine.get("GPU", 0)) for machine in machines]
        if not any(cpus >= self._cpus and gpus >= self._gpus for cpus, gpus in sizes):
            found = ", ".join(f"{cpus:g} and {gpus:g}" for cpus, gpus in sizes) or "none"
            raise UserError(
                f"a run needs {self._cpus:g} CPUs and {self._gpus:g} GPUs on one machine; "
                f"those of the Ray cluster have: {found}"
            )

    def start(self, work: Work) -> Task:
        """Queue a task."""
        more = work.settings.read_text() if self._send_back else os.getcwd()
        return Task(self._task.remote(work.absolute(), more, versions()), work.folder.resolve())

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        ray.shutdown()


class Task:
    """A queued or running task."""

    def __init__(self, reference: Any, folder: Path) -> None:
        self._reference, self._folder = reference, folder

    def ended(self) -> Ended | None:
        """Return how it ended, None while it runs."""
        done, _ = ray.wait([self._reference], timeout=0)
        if not done:
            return None
        try:
            ended, packed = ray.get(self._reference)
        except ray.exceptions.RayError as failure:
            return Ended(1, f"Ray: {' '.join(str(failure).split())[:300]}")
        if packed is not None:
            _unpack(packed, self._folder)
        return Ended(*ended)

    def stop(self) -> None:
        """Cancel it: the process ends with its worker, after writing its checkpoint."""
        ray.cancel(self._reference, force=True)


def _other_versions(expected: str) -> Ended | None:
    """Return the error of a worker whose packages would compute something else."""
    if versions() == expected:
        return None
    return Ended(2, f"{platform.node()} has {versions()}, this command {expected}; install the same versions")


def _compute(work: Work, cwd: str, expected: str) -> tuple[Ended, None]:
    """Train a run on a worker that shares the grid's folders."""
    return _other_versions(expected) or train_on_cluster(work, cwd), None


def _compute_elsewhere(work: Work, settings: str, expected: str) -> tuple[Ended, bytes | None]:
    """Train a run on a worker with a disk of its own, where it finds its checkpoints if started again."""
    if (other := _other_versions(expected)) is not None:
        return other, None
    key = hashlib.blake2b(f"{work.name}\n{settings}".encode(), digest_size=8).hexdigest()
    place = Path(tempfile.gettempdir()) / f"sora-{key}"
    place.mkdir(exist_ok=True)
    work = replace(work, settings=place / "settings.yaml", folder=place / work.name)
    write_text(work.settings, settings)
    ended = train_on_cluster(work)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        if work.folder.exists():
            archive.add(work.folder, arcname=".")
    if ended.code == 0:  # a later version must not take it for its own result
        shutil.rmtree(place, ignore_errors=True)
    return ended, packed.getvalue()


def _unpack(packed: bytes, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        archive.extractall(folder, filter="data")  # refuses paths outside, links and devices
