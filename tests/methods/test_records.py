"""What a method's step returns."""

from __future__ import annotations

import torch
from torch import nn

from sora.methods import create
from sora.threat import Linf


def test_the_output_of_a_step_is_printed_in_one_short_line() -> None:
    torch.manual_seed(0)
    model, x, y = (
        nn.Sequential(nn.Flatten(), nn.Linear(48, 10)),
        torch.rand(32, 3, 4, 4),
        torch.arange(32) % 10,
    )
    out = create("sora", Linf("8/255")).step(model, x, y)
    text = repr(out)
    assert text == str(out)
    assert text.startswith(f"StepOutput(loss={out.loss.item():.4g}, accuracy={out.accuracy.item():.4g}, ")
    assert "x_adv=float32 (32, 3, 4, 4), logits=float32 (32, 10)" in text
    assert all(f"{name}=" in text for name in out.extras)
    assert len(text.splitlines()) == 1
    assert len(text) < 500
