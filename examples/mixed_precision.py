"""SORA in float16 with a GradScaler, in a loop of your own.

    python examples/mixed_precision.py

The scaler never sees the loss, because the method makes the backward passes itself. So the factor is asked
for as a tensor, which needs no waiting for the device, and passed to the step as `loss_scale`. It is used in
both passes; the method divides the gradients that it uses itself, and `scaler.step` those of the weights.
"""

import torch
from plain_loop import digits
from torch.utils.data import DataLoader

import sora


def main(epochs: int = 3, device: str = "cuda" if torch.cuda.is_available() else "cpu") -> float:
    torch.manual_seed(0)
    model = sora.models.create("preactresnet18", 10, in_channels=1, image_size=8, width=8, stages=1)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    method = sora.methods.create("sora", sora.Linf(0.15)).to(device)
    scaler = torch.amp.GradScaler(device)
    one = torch.ones((), device=device)

    for epoch in range(1, epochs + 1):
        for x, y in DataLoader(digits(), batch_size=128, shuffle=True):
            with torch.autocast(device, torch.float16):
                out = method.step(model, x.to(device), y.to(device), loss_scale=scaler.scale(one))
            scaler.step(optimizer)  # leaves the weights as they are if a gradient overflowed
            scaler.update()
            optimizer.zero_grad()
        print(f"epoch {epoch}: loss {out.loss:.3f}, scale {scaler.get_scale():g}")
    return float(out.loss)


if __name__ == "__main__":
    main()
