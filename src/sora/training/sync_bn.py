"""BatchNorm over the batch of all ranks. torch's own class does it on CUDA but refuses CPU tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sora._passes import precise


def sync_batch_norm(model: nn.Module) -> nn.Module:
    """Replace every BatchNorm; parameters and buffers, their names and order stay as they are."""
    if any(parameter.is_cuda for parameter in model.parameters()):
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return converted
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm):
                setattr(parent, name, _synced(child))
    return model


def _synced(module: _BatchNorm) -> CPUSyncBatchNorm:
    dtype = next((tensor.dtype for tensor in (*module.parameters(), *module.buffers())), None)
    options = (module.eps, module.momentum, module.affine, module.track_running_stats)
    synced = CPUSyncBatchNorm(module.num_features, *options, dtype=dtype)
    synced.load_state_dict(module.state_dict())
    return synced.train(module.training)


class _SumOverRanks(torch.autograd.Function):
    """An all-reduce; every rank's loss depends on the sum, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        values = values.clone()
        distributed.all_reduce(values)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _sum_over_ranks(gradient)  # differentiable in turn, for penalties on gradients


def _sum_over_ranks(values: Tensor) -> Tensor:
    summed: Tensor = _SumOverRanks.apply(values)  # type: ignore[no-untyped-call]
    return summed


class CPUSyncBatchNorm(_BatchNorm):
    """Batch statistics from sums that a differentiable all-reduce adds up over ranks."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected a batch of features, got shape {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (N, C, ...); while training by the mean and variance over all ranks."""
        if not self.training or not distributed.is_initialized():
            return super().forward(input)
        dims = [d for d in range(input.dim()) if d != 1]
        x = precise(input)  # sums over a batch are too inexact in half precision
        count = x.new_full((1,), x.numel() / x.shape[1])
        sums = _sum_over_ranks(torch.cat((x.sum(dims), count)))
        shape = (1, -1) + (1,) * (input.dim() - 2)
        mean = sums[:-1] / sums[-1]
        centred = x - mean.view(shape)  # a second reduction, but no cancellation in the variance
        variance = _sum_over_ranks(centred.square().sum(dims)) / sums[-1]
        self._track(mean.detach(), variance.detach(), sums[-1].detach())
        out: Tensor = centred * (variance + self.eps).rsqrt().view(shape)
        out = out if not self.affine else out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(input.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance * count / (count - 1), share)
