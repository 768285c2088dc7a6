"""SORA and the guard in a training loop of your own.

    python examples/plain_loop.py

The method makes both passes and fills `.grad`; the loop stays yours. PertAlign values wait on the device and
reach the guard every ten steps, so that no step waits for the GPU.
"""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import sora


def digits() -> TensorDataset:
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16  # [0, 1], as sora wants them
    return TensorDataset(images, torch.tensor(found.target))


def main(method_name: str = "sora", epochs: int = 10, eps: float = 0.15, seed: int = 0) -> list[str]:
    torch.manual_seed(seed)
    model = sora.models.create("preactresnet18", 10, in_channels=1, image_size=8, width=16, stages=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    method = sora.methods.create(method_name, sora.Linf(eps))
    guard = sora.Guard()
    loader = DataLoader(digits(), batch_size=128, shuffle=True)

    good = copy.deepcopy(model.state_dict())
    waiting: list[torch.Tensor] = []
    heard: list[str] = []
    for epoch in range(1, epochs + 1):
        for x, y in loader:
            out = method.step(model, x, y)
            optimizer.step()
            optimizer.zero_grad()
            waiting.append(out.pert_align)
            if len(waiting) < 10:
                continue
            for value in torch.stack(waiting).tolist():
                word = guard.update(value)
                if word != "ok":
                    heard.append(word)
                    print(f"epoch {epoch}: {word}, PertAlign average {guard.average:.2f}")
            waiting.clear()
            if guard.healthy:
                good = copy.deepcopy(model.state_dict())
            elif guard.alarmed:  # one thing to do about it: end with the last good weights
                model.load_state_dict(good)
                return heard
        print(f"epoch {epoch}: loss {out.loss:.3f}, PertAlign average {guard.average:.2f}")
    return heard


if __name__ == "__main__":
    main()
