"""A Slurm cluster of two nodes on this machine, with folders and ports of its own."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NODES = ("n1", "n2")
CONFIG = """
ClusterName=sora
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Return the Debian packages that a cluster needs and that are not installed."""
    programs = {"slurm-wlm": ("slurmctld", "slurmd", "sbatch", "squeue"), "munge": ("munged",)}
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    return [name for name, need in programs.items() if not all(shutil.which(one, path=path) for one in need)]


@contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """Start the cluster for a block; programs of Slurm find it by the environment."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # munge refuses a socket that others could not reach
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    key, config, ports = folder / "munge.key", folder / "slurm.conf", _free_ports(3)
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    (folder / "state").mkdir(exist_ok=True)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    config.write_text(CONFIG.format(folder=folder, ports=ports, user=user))
    os.environ["SLURM_CONF"] = str(config)
    names = ("key-file", "socket", "pid-file", "log-file", "seed-file")
    files = [key, *(folder / f"munge.{end}" for end in ("socket", "pid", "log", "seed"))]
    commands = [
        ["munged", "--foreground", "--force", *(f"--{n}={f}" for n, f in zip(names, files, strict=True))]
    ]
    commands += [["slurmctld", "-D", "-f", str(config)]]
    commands += [["slurmd", "-D", "-f", str(config), "-N", node] for node in NODES]
    started = []
    try:
        for command in commands:
            output = (folder / f"{Path(command[0]).name}.out").open("a")
            started.append(subprocess.Popen(command, stdout=output, stderr=output))
            time.sleep(1)
        deadline = time.monotonic() + 90
        while (states := node_states()) != ["idle"] * len(NODES):
            assert time.monotonic() < deadline, f"nodes are {states}; see {folder}"
            assert all(process.poll() is None for process in started), f"a daemon has ended; see {folder}"
            time.sleep(1)
        yield
    finally:
        subprocess.run(["scancel", "--me"], capture_output=True, timeout=30)
        time.sleep(1)
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
        del os.environ["SLURM_CONF"]


def node_states() -> list[str]:
    """Return the state of each node, such as idle or down."""
    shown = subprocess.run(["sinfo", "--Node", "--noheader", "--format=%T"], capture_output=True, text=True)
    return shown.stdout.split()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


if (
    __name__ == "__main__"
):  # `python -m tests.cluster.slurm FOLDER COMMAND ...` runs a command on such a cluster
    with cluster(Path(sys.argv[1]).resolve()):
        sys.exit(subprocess.run(sys.argv[2:]).returncode)
