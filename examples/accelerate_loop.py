"""SORA and the guard with Hugging Face Accelerate.

    pip install 'sora-at[examples]'
    accelerate launch examples/accelerate_loop.py                  # one process, or one for each GPU
    torchrun --nproc-per-node 2 examples/accelerate_loop.py --cpu  # two processes on the CPU

For several processes on the CPU `accelerate launch` needs MPI: with `--cpu --num_processes 2` alone it starts
one. Accelerate recognises the processes that torchrun starts.

The method calls `.backward()` through the prepared model itself, so Accelerate's gradient averaging over
processes works as usual; `accelerator.backward` is not needed.
"""

import sys

import torch
from accelerate import Accelerator
from plain_loop import digits
from torch.utils.data import DataLoader

import sora


def main(epochs: int = 10, method_name: str = "sora", eps: float = 0.15, cpu: bool = False) -> list[str]:
    accelerator = Accelerator(cpu=cpu)
    accelerator.print(f"{accelerator.num_processes} process(es) on {accelerator.device.type}")
    torch.manual_seed(0)
    model = sora.models.create("preactresnet18", 10, in_channels=1, image_size=8, width=16, stages=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    loader = DataLoader(digits(), batch_size=128, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    method = sora.methods.create(method_name, sora.Linf(eps)).to(accelerator.device)
    guard = sora.Guard()
    accelerator.register_for_checkpointing(method, guard)  # both have a state_dict

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
            # The mean over processes, so that every guard gets the same values.
            for value in accelerator.reduce(torch.stack(pending), "mean").tolist():
                status = guard.update(value)
                if status != "ok":
                    alarms.append(status)
                    accelerator.print(f"epoch {epoch}: {status}, PertAlign average {guard.average:.2f}")
            pending.clear()
            if guard.alarmed:
                return alarms
        accelerator.print(f"epoch {epoch}: loss {out.loss:.3f}, PertAlign average {guard.average:.2f}")
    return alarms


if __name__ == "__main__":
    main(cpu="--cpu" in sys.argv)
