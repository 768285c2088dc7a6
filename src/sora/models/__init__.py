"""The paper's networks: one architecture a file, pixels in [0, 1] in, logits out."""

from sora.models import preactresnet  # noqa: F401  (importing a file registers its networks)
from sora.models._normalize import Normalize
from sora.models._registry import Entry, create, entry, names, register

__all__ = ["Entry", "Normalize", "create", "entry", "names", "register"]
