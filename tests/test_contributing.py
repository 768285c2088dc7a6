"""The examples of CONTRIBUTING.md run: a method of one's own trains, an attack of one's own evaluates."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import torch

import sora
from sora.methods import Crafted, Inputs

PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
METHOD, ATTACK = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def run(code: str) -> None:
    exec(compile(code, "CONTRIBUTING.md", "exec", dont_inherit=True), {})


def test_the_method_trains_with_its_options() -> None:
    torch.manual_seed(0)
    run(METHOD)
    images, labels = torch.randint(0, 256, (80, 1, 4, 4), dtype=torch.uint8), torch.arange(80) % 2
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    data = ((images[:64], labels[:64]), (images[64:], labels[64:]))
    result = sora.fit(model, data, method="short-step", eps="8/255", epochs=1, batch_size=16, quiet=True)
    assert result.summary["method"] == "short-step"
    assert result.summary["pert_align"]["last"] is not None
    method = sora.methods.create("short-step", sora.Linf("8/255"), length=0.25)
    out = method.step(model, images[:8] / 255, labels[:8])
    assert float(out.step_size) == pytest.approx(2 / 255)


def test_the_attack_evaluates_and_every_field_of_a_method_is_described() -> None:
    run(ATTACK)
    x, y = torch.rand(20, 1, 4, 4), torch.arange(20) % 2
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    evaluation = sora.evaluate(model, (x, y), sora.Linf("8/255"), attacks=["clean", "noise"])
    assert set(evaluation.accuracy) == {"clean", "noise"}
    for record, names in (
        (Inputs, [field.name for field in dataclasses.fields(Inputs)]),
        (Crafted, list(Crafted._fields)),
    ):
        described = inspect.getdoc(record)
        assert described is not None
        assert all(f"\n    {name}: " in described for name in names)
