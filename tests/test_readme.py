"""The loop of the README; its code blocks as written are run by tests/docs."""

import torch

import sora


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
