"""A copy of a model for long attacks: the same function in evaluation mode, in fewer and faster passes.

A BatchNorm whose input is the output of a convolution, and of nothing else, becomes part of that convolution.
Every other BatchNorm becomes one affine pass, whose backward pass needs no sums over the batch. The truth
stays with the model itself: attacks run on the copy, but all their results are checked on the model.
"""

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from sora._passes import close, cross_entropy, gradient_of
from sora.errors import UserError
from sora.models import fast_layout

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
SAME = 0.01  # how much the input gradients of copy and model may differ, relative to their length


def fast_copy(model: nn.Module, compiled: bool = False) -> nn.Module | None:
    """Return a copy of a model in evaluation mode, or None if there is none or it gains nothing.

    Models with hooks of their owner's, without BatchNorm, and those that cannot be copied have none.
    """
    own = (getattr(hook, "__module__", "") for part in model.modules() for name in _HOOKS
           for hook in vars(part).get(name, {}).values())  # fmt: skip
    gains = compiled or any(_can_fold(part) for part in model.modules())
    if not gains or any(module != fast_layout.__module__ for module in own):
        return None
    try:
        copied = _folded(copy.deepcopy(model).requires_grad_(False))
        seen = dict[nn.Module, nn.Module]()
        for part in copied.modules():
            for name, child in part.named_children():
                if _can_fold(child):
                    setattr(part, name, seen.setdefault(child, Affine(child)))
        fast_layout(copied)
    except Exception:  # whatever a model's own code raises: it is evaluated as it is
        return None
    return Compiled(copied) if compiled else copied


def same_function(model: nn.Module, copied: nn.Module, x: Tensor, y: Tensor) -> bool:
    """Return whether outputs and input gradients of a copy are those of the model, but for rounding."""
    try:
        found = [gradient_of(lambda logits: cross_entropy(logits, y), each, x) for each in (model, copied)]
    except Exception as error:
        if not isinstance(copied, Compiled):
            return False
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"the model cannot be compiled: {reason}; leave out --compile") from error
    (gradient, logits), (other, same) = found
    return close(logits, same) and bool((gradient - other).norm() <= SAME * gradient.norm())


class Affine(nn.Module):
    """A BatchNorm in evaluation mode, `scale x + shift`."""

    scale: Tensor
    shift: Tensor

    def __init__(self, norm: Any) -> None:
        super().__init__()
        scale = torch.rsqrt(norm.running_var + norm.eps)
        scale = scale if norm.weight is None else scale * norm.weight.detach()
        shift = (0 if norm.bias is None else norm.bias.detach()) - norm.running_mean * scale
        self.register_buffer("scale", scale.reshape(-1, 1, 1))
        self.register_buffer("shift", shift.reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to the same shape."""
        return torch.addcmul(self.shift, x, self.scale)


class Compiled(nn.Module):
    """A compiled module; inputs may be of any number, so that it is compiled once for each kind of pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._compiled: Any = torch.compile(module)

    def forward(self, x: Tensor) -> Tensor:
        """Return the module's output."""
        # torch compiles anew for another memory order and for each mode, eight times at most.
        with torch.inference_mode(False), torch.set_grad_enabled(x.requires_grad):
            x = x.clone(memory_format=torch.channels_last if x.dim() == 4 else torch.preserve_format)
            torch._dynamo.maybe_mark_dynamic(x, 0)
            output: Tensor = self._compiled(x)
        return output


class _Tracer(fx.Tracer):
    """Traces down to modules without parts, which may compute what a trace cannot record."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(True for _ in m.children())


def _can_fold(module: nn.Module) -> bool:
    return type(module) is nn.BatchNorm2d and not module.training and module.running_mean is not None


def _folded(model: nn.Module) -> nn.Module:
    """Fold each BatchNorm into the convolution before it; a model that cannot be traced stays as it is."""
    try:
        traced = fx.GraphModule(model, _Tracer().trace(model))
    except Exception:  # its forward pass depends on values or sizes
        return model
    modules = dict(traced.named_modules())
    calls = [node for node in traced.graph.nodes if node.op == "call_module"]
    used = [modules[str(node.target)] for node in calls]
    for node in calls:
        norm, before = modules[str(node.target)], node.args[0] if node.args else None
        if not _can_fold(norm) or before not in calls or len(before.users) > 1:  # type: ignore[union-attr]
            continue
        assert isinstance(before, fx.Node)
        conv = modules[str(before.target)]
        if type(conv) is nn.Conv2d and sum(each is conv for each in used) == 1:  # one that is shared stays
            parent, _, name = str(before.target).rpartition(".")
            setattr(traced.get_submodule(parent), name, fuse_conv_bn_eval(conv, norm))
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced
