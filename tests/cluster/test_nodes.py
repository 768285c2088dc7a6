"""Two nodes in two network namespaces train one run over torchrun and gloo."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import PATIENCE, underway

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        shutil.which("ip") is None or os.geteuid() != 0, reason="needs `ip` (iproute2) and root"
    ),
]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
RUN = (
    "-m sora train --dataset digits --method sora --limit-train 400 --limit-test 20 --width 4 --epochs 8"
    " --eval-every 0"
    " --batch-size 32 --attacks clean --set model.stages=1 --checkpoint-every 20 --device cpu --threads 1"
)
NODES = ("10.93.0.1", "10.93.0.2")


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[str]]:
    names = [f"sora-{os.getpid()}-{number}" for number in (1, 2)]
    links = [f"s{os.getpid()}{end}" for end in "ab"]
    commands = [f"ip netns add {name}" for name in names]
    commands += [f"ip link add {links[0]} type veth peer name {links[1]}"]
    for name, link, address in zip(names, links, NODES, strict=True):
        inside = f"ip -n {name}"
        commands += [f"ip link set {link} netns {name}", f"{inside} address add {address}/24 dev {link}"]
        commands += [f"{inside} link set {link} up", f"{inside} link set lo up"]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name])


def start(
    nodes: list[str], out: Path, *flags: str, second: dict[str, str] | None = None
) -> list[subprocess.Popen[str]]:
    """Start torchrun on both nodes, each in a session of its own; `second` holds variables of the second."""
    processes = []
    for number, (name, address) in enumerate(zip(nodes, NODES, strict=True)):
        how = (
            f"--nnodes 2 --nproc-per-node 1 --node-rank {number} --master-addr {NODES[0]} --master-port 29511"
        )
        show = ["ip", "-n", name, "-brief", "address", "show", "to", f"{address}/32"]
        link = subprocess.run(show, capture_output=True, text=True).stdout.split()[0].partition("@")[0]
        inside = [
            "ip",
            "netns",
            "exec",
            name,
            *TORCHRUN,
            *how.split(),
            *RUN.split(),
            "--out",
            str(out),
            *flags,
        ]
        variables = {**os.environ, "GLOO_SOCKET_IFNAME": link, **((second or {}) if number else {})}
        options = {"env": variables, "start_new_session": True, "text": True}
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        processes.append(subprocess.Popen(inside, **options, **streams))
    return processes


def finish(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        errors = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 0, errors


def weights(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("one") / "run"
    launcher = [*TORCHRUN, "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*launcher, *RUN.split(), "--out", str(out)], check=True, capture_output=True)
    return weights(out)


def test_two_nodes_give_the_weights_of_one(nodes: list[str], one_node: bytes, tmp_path: Path) -> None:
    finish(start(nodes, tmp_path / "run"))
    assert weights(tmp_path / "run") == one_node


@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_node_ends_the_other_and_the_run_can_be_resumed(
    lost: int, nodes: list[str], one_node: bytes, tmp_path: Path
) -> None:
    processes = start(nodes, tmp_path / "run")
    underway(tmp_path / "run")
    for number in subprocess.run(
        ["ip", "netns", "pids", nodes[lost]], capture_output=True, text=True
    ).stdout.split():
        os.kill(int(number), signal.SIGKILL)
    began = time.monotonic()
    errors = processes[1 - lost].communicate(timeout=120)[1]
    processes[lost].communicate()
    assert time.monotonic() - began < 60
    assert processes[1 - lost].returncode != 0
    lines = [line for line in errors.splitlines() if line.startswith("sora:")]
    assert len(lines) == 1, errors
    assert "another process ended" in lines[0]
    finish(start(nodes, tmp_path / "run", "--resume"))
    assert weights(tmp_path / "run") == one_node


def test_nodes_with_other_versions_say_so_at_once(nodes: list[str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sora; sora.__version__ = '0.0.1'")
    processes = start(nodes, tmp_path / "run", second={"PYTHONPATH": str(tmp_path)})
    for number, process in enumerate(processes):
        errors = process.communicate(timeout=300)[1]
        lines = [line for line in errors.splitlines() if line.startswith("sora:")]
        assert len(lines) == 1, errors
        assert f"process {number} has sora " in lines[0]
        assert "install the same versions" in lines[0]
        assert process.returncode != 0
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
