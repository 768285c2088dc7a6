"""The paper's networks: one architecture a file, pixels in [0, 1] in, logits out."""

# Importing an architecture registers it.
from sora.models import preactresnet, resnet, senet, vit, wideresnet  # noqa: F401
from sora.models._layout import fast_layout, own_layout
from sora.models._normalize import Normalize
from sora.models._registry import Entry, create, entry, names, register

__all__ = ["Entry", "Normalize", "create", "entry", "fast_layout", "names", "own_layout", "register"]
