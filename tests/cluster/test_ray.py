"""A grid on a Ray cluster of two nodes without a shared folder: nodes come and go, the bits stay."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import PATIENCE, compare, done, underway, wait_until, weights

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.cluster


class Nodes:
    """A cluster whose nodes have one core and a temporary folder each."""

    def __init__(self, folder: Path, count: int) -> None:
        from ray.cluster_utils import Cluster

        self.folder, self.cluster, self.nodes = folder, Cluster(), list[Any]()
        for _ in range(count):
            self.add()

    def add(self) -> None:
        place = self.folder / f"node{len(self.nodes)}"
        place.mkdir(parents=True)
        self.nodes.append(self.cluster.add_node(num_cpus=1, env_vars={"TMPDIR": str(place)}))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path / "nodes", 2)
    yield nodes
    nodes.cluster.shutdown()


def test_more_runs_than_cores_and_a_node_removed(
    nodes: Nodes, local: dict[str, bytes], tmp_path: Path
) -> None:
    flags = ["--engine", "ray", "--address", nodes.cluster.address, "--send-back"]
    process = compare(tmp_path / "g", *flags, methods="fgsm,sora,n-fgsm")
    found = wait_until(lambda: list(nodes.folder.glob("node1/sora-*/*-s0")), process)
    underway(found[0], process)
    nodes.cluster.remove_node(nodes.nodes[1], allow_graceful=False)
    done(process)
    assert weights(tmp_path / "g") == local


def test_the_head_is_lost_and_the_command_repeated(local: dict[str, bytes], tmp_path: Path) -> None:
    first = Nodes(tmp_path / "first", 1)
    process = compare(tmp_path / "g", "--engine", "ray", "--address", first.cluster.address)
    underway(tmp_path / "g" / "fgsm-s0", process)
    first.cluster.shutdown()
    errors = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode != 0, errors
    second = Nodes(tmp_path / "second", 1)
    try:
        done(compare(tmp_path / "g", "--engine", "ray", "--address", second.cluster.address, "--resume"))
    finally:
        second.cluster.shutdown()
    assert weights(tmp_path / "g")["fgsm-s0"] == local["fgsm-s0"]
