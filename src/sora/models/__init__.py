"""The paper's networks, one architecture per file: pixels in [0, 1] in, logits out."""

from sora.models._layout import fast_layout, own_layout
from sora.models._normalize import Normalize
from sora.models._registry import Info, create, info, names, register

__all__ = ["Info", "Normalize", "create", "fast_layout", "info", "names", "own_layout", "register"]
