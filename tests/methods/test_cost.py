from __future__ import annotations

import pytest
import torch

from sora.methods import cost_table, measure
from sora.methods._cost import LiveBytes


@pytest.mark.parametrize(
    ("name", "forwards", "backwards"),
    [
        ("benign", 1, 1),
        ("fgsm", 2, 2),
        ("gradalign", 3, 4),
        ("multigrad", 4, 4),
        ("elle", 5, 5),
        ("free", 8, 8),
    ],
)
def test_passes_are_counted_by_hooks(name: str, forwards: float, backwards: float) -> None:
    cost = measure(name, batch_size=4, rounds=1)
    assert (cost.forwards, cost.backwards) == (forwards, backwards)
    assert cost.peak_bytes > 0
    assert cost.seconds > 0


def test_the_table_has_the_papers_count_and_time_in_multiples_of_fgsm() -> None:
    rows = cost_table(["fgsm", "sora"], batch_size=4, rounds=1)
    assert [row["name"] for row in rows] == ["fgsm", "sora"]
    assert rows[0]["relative_time"] == 1.0
    assert rows[1]["relative_time"] > 0
    assert rows[1]["paper"] == "2 / 2"
    assert set(rows[0]) == {
        "name",
        "paper",
        "forwards",
        "backwards",
        "peak_bytes",
        "seconds",
        "relative_time",
    }


def test_memory_grows_with_the_graphs_a_method_holds() -> None:
    peaks = {name: measure(name, batch_size=4, rounds=1).peak_bytes for name in ("fgsm", "multigrad", "nuat")}
    assert peaks["fgsm"] * 1.3 < peaks["nuat"]
    assert peaks["fgsm"] * 2 < peaks["multigrad"]


def test_live_bytes_follow_allocations_and_releases() -> None:
    before = torch.zeros(1000)
    live = LiveBytes()
    with live:
        before.view(10, 100).add_(1)  # existed before
        assert live.peak == 0
        a = torch.zeros(1000)
        b = a.view(10, 100)
        assert live.live == 4000
        c = a + 1
        assert live.live == 8000
        del a, c
        assert live.live == 4000  # the view keeps its storage
        del b
    assert live.live == 0
    assert live.peak == 8000
