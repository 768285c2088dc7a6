"""The README's Python runs as written."""

import re
from pathlib import Path

import pytest
import torch

import sora

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_code_block_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_there_are_code_blocks() -> None:
    assert len(BLOCKS) >= 2


def test_the_loop_works_on_vectors_without_a_box() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = sora.methods.create("sora", sora.Linf(0.1, box=None))
    x = torch.randn(64, 6) * 5
    y = x[:, :3].argmax(1)
    losses = []
    for _ in range(60):
        out = method.step(model, x, y)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(out.loss))
    assert losses[-1] < 0.5 * losses[0]
    assert -1 <= float(out.pert_align) <= 1
    assert 0 < float(out.step_size) <= 0.2 + 1e-6
