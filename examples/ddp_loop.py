"""SORA in several processes with DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/ddp_loop.py

The wrapped model is passed to the method; DDP averages the gradients in the backward pass as usual.
"""

import torch
from plain_loop import digits
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import sora


def main(epochs: int = 3) -> None:
    cuda = torch.cuda.is_available()
    distributed.init_process_group("nccl" if cuda else "gloo")
    rank = distributed.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    torch.manual_seed(rank)  # each process draws noise of its own; DDP sends the weights of the first to all
    model = sora.models.create("preactresnet18", 10, in_channels=1, image_size=8, width=16, stages=2)
    model = DistributedDataParallel(model.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    method = sora.methods.create("sora", sora.Linf(0.15)).to(device)
    data = digits()
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=64, sampler=sampler)

    for epoch in range(1, epochs + 1):
        sampler.set_epoch(epoch)
        for x, y in loader:
            out = method.step(model, x.to(device), y.to(device))
            optimizer.step()
            optimizer.zero_grad()
        weights = sum(parameter.detach().double().sum() for parameter in model.parameters())
        print(f"rank {rank}, epoch {epoch}: loss {out.loss:.3f}, sum of weights {weights:.6f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
