import pytest
import torch

from sora import methods
from sora.methods import cost_table, measure
from sora.methods._cost import LiveBytes

# With options; the defaults are below. A backward pass through n graphs counts n times at the logits.
PASSES: dict[str, tuple[float, float]] = {
    "ssat checkpoints=1": (2, 2),
    "fgsm-rs-cs initialize=true": (2, 3),
    "fgsm-mep-cs initialize=true": (2, 3),
    "fgsm-mep-cs reg_single=true": (3, 4),
    "fgsm-law reference=start": (2, 3),
    "free replays=3": (3, 3),
}


@pytest.mark.parametrize("label", PASSES)
def test_passes_are_counted_by_hooks(label: str) -> None:
    name, *options = label.split()
    cost = measure(name, batch_size=4, rounds=1, hyper=dict(option.split("=") for option in options))
    assert (cost.forwards, cost.backwards) == PASSES[label]
    assert cost.peak_bytes > 0
    assert cost.seconds > 0


@pytest.mark.parametrize("name", methods.names())
def test_the_registry_has_the_cost_that_is_measured(name: str) -> None:
    measured, stated = measure(name, batch_size=4, rounds=1), methods.info(name).cost
    if name in ("liet", "fgsm-lass"):  # measured on a batch with an update that most batches do not have
        rare = {"liet": 10 / 4, "fgsm-lass": 1.0}[name]
        measured = measured._replace(forwards=measured.forwards - rare, backwards=measured.backwards - rare)
    assert stated == (measured.forwards + measured.backwards) / 2


def test_the_table_has_the_papers_count_and_memory_grows_with_the_graphs_a_method_holds() -> None:
    rows = cost_table(["fgsm", "sora"], batch_size=4, rounds=1)
    assert [row["name"] for row in rows] == ["fgsm", "sora"]
    assert rows[0]["relative_time"] == 1.0
    assert rows[1]["relative_time"] > 0
    assert rows[1]["paper"] == "2 / 2"
    names = "name paper forwards backwards peak_bytes seconds relative_time"
    assert set(rows[0]) == set(names.split())
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
