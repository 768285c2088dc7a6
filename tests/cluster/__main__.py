"""Clusters on this machine: `make test-cluster` prints what is missing; --install installs it."""

import importlib.util
import shutil
import subprocess
import sys

import pytest

from tests.cluster import slurm

debian = [*slurm.missing(), *([] if shutil.which("ip") else ["iproute2"])]
python = [] if importlib.util.find_spec("ray") else ["ray"]
if "--install" in sys.argv:
    if debian:
        subprocess.run(["apt-get", "update", "--quiet"], check=True)
        subprocess.run(["apt-get", "install", "--yes", "--quiet", *debian], check=True)
    if python:
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "-c", "constraints.txt", *python], check=True
        )
elif debian or python:
    print(
        f"not installed: {', '.join([*debian, *python])}; their tests are left out (INSTALL=1 installs them)"
    )
OPTIONS = "-m cluster tests/cluster -vv -rs -p no:xdist --durations=0 --durations-min=1"
sys.exit(pytest.main(OPTIONS.split()))
