"""Tables of the paper that are made without runs."""

from typing import Any

import pytest
import torch

from sora.errors import UserError
from sora.experiments import paper, reproduce
from sora.experiments.target import Target


def cost_of(*methods: str, **given: Any) -> Any:
    target = Target(paper.load("cost"), methods=methods, scale={"width": 4}, given=given)
    return reproduce.reproduce(target)


@pytest.mark.parametrize(
    ("given", "used"), [({}, "cpu"), ({"device": "auto"}, "cpu"), ({"device": "cuda:1"}, "cuda:1")]
)
def test_memory_is_in_multiples_of_fgsm_and_the_header_names_the_machine(given, used, monkeypatch) -> None:
    measured, devices = {"fgsm": 2, "sora": 3, "pgd-10": 5}, []

    def cost_table(names: list[str], device: str, **options: Any) -> list[dict[str, Any]]:
        devices.append(device)
        passes = {"forwards": 2, "backwards": 2}
        return [{"name": name, "peak_bytes": measured[name] * 2**23, **passes} for name in names]

    monkeypatch.setattr(reproduce, "cost_table", cost_table)
    monkeypatch.setattr(reproduce, "pick_device", torch.device)
    monkeypatch.setattr(reproduce, "machine", lambda device: {"gpu": f"chip of {device}", "threads": 1})
    table = cost_of("sora", "pgd-10", **given)  # fgsm is not a row
    texts = {name: row["memory"].text for name, row in table.cells.items()}
    assert texts == {"sora": "1.50 x, 3.0 MB/image", "pgd-10": "2.50 x, 5.0 MB/image"}
    assert f"chip of {used}, 1 thread" in table.header[0]
    assert devices == [used]


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_costs_are_measured_on_a_device_that_is_there(device: str) -> None:
    with pytest.raises(UserError, match=f"device '?{device}'? is not available; allowed: auto, cpu"):
        cost_of("sora", device=device)
