"""The device a command or a run computes on."""

from __future__ import annotations

import os

import torch

from sora.errors import UserError


def device_name(name: str) -> str:
    """`name` with nothing left open: `auto` is a GPU if there is one, `cuda` is this process' own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if name == "cuda" else name


def pick_device(name: str) -> torch.device:
    """The device of that name, which must be usable."""
    try:
        device = torch.device(device_name(name))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"device {name!r} is not available; allowed: cpu, cuda, cuda:N, auto") from None
    return device
