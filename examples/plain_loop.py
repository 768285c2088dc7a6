"""SORA and the guard in your own training loop.

    python examples/plain_loop.py

The method makes both passes and fills `.grad`; the rest of the loop is unchanged. PertAlign values stay on
the device and are passed to the guard every ten steps, so that no step waits for the GPU.
"""

import copy

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import sora


def digits() -> TensorDataset:
    dataset = load_digits()
    images = torch.tensor(dataset.images, dtype=torch.float32).unsqueeze(1) / 16  # pixels in [0, 1]
    return TensorDataset(images, torch.tensor(dataset.target))


def main(method_name: str = "sora", epochs: int = 10, eps: float = 0.15, seed: int = 0) -> list[str]:
    torch.manual_seed(seed)
    model = sora.models.create("preactresnet18", 10, in_channels=1, image_size=8, width=16, stages=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    method = sora.methods.create(method_name, sora.Linf(eps))
    guard = sora.Guard()
    loader = DataLoader(digits(), batch_size=128, shuffle=True)

    good = copy.deepcopy(model.state_dict())
    pending: list[torch.Tensor] = []
    alarms: list[str] = []
    for epoch in range(1, epochs + 1):
        for x, y in loader:
            out = method.step(model, x, y)
            optimizer.step()
            optimizer.zero_grad()
            pending.append(out.pert_align)
            if len(pending) < 10:
                continue
            for value in torch.stack(pending).tolist():
                status = guard.update(value)
                if status != "ok":
                    alarms.append(status)
                    print(f"epoch {epoch}: {status}, PertAlign average {guard.average:.2f}")
            pending.clear()
            if guard.healthy:
                good = copy.deepcopy(model.state_dict())
            elif guard.alarmed:  # one possible reaction: end with the last good weights
                model.load_state_dict(good)
                return alarms
        print(f"epoch {epoch}: loss {out.loss:.3f}, PertAlign average {guard.average:.2f}")
    return alarms


if __name__ == "__main__":
    main()
