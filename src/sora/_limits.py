"""Limits on what a file may make the program read or allocate; an environment variable replaces each."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sora.errors import UserError


@dataclass(frozen=True)
class Limit:
    """An upper bound, with the variable that replaces it."""

    variable: str
    default: int
    unit: str

    @property
    def value(self) -> int:
        """The bound that holds now."""
        text = os.environ.get(self.variable)
        if text is None:
            return self.default
        if not text.isdecimal() or int(text) < 1:
            raise UserError(f"{self.variable} is {text!r}; expected a whole number, 1 or more")
        return int(text)

    def refusal(self, what: str, factor: int = 1) -> UserError:
        """The error for something that exceeds the bound; `factor` multiplies it."""
        bound = f"{self.value * factor:,} {self.unit}"
        return UserError(f"{what} exceeds the limit of {bound}; set {self.variable} to change it")


PIXELS = Limit("SORA_MAX_PIXELS", 1 << 26, "pixels")
"""Pixels of an image file, whatever it is resized to."""
STORED_PIXELS = Limit("SORA_MAX_STORED_PIXELS", 1 << 22, "pixels")
"""Pixels of an image as it is trained on."""
UNPACKED = Limit("SORA_MAX_UNPACKED", 1 << 29, "bytes")
"""Size of an unpacked archive, and of a single file that is read as a whole."""
SETTINGS = Limit("SORA_MAX_SETTINGS", 1 << 16, "bytes")
"""Size of a settings file; the YAML parser needs a second for ten times that."""
TEXT = Limit("SORA_MAX_TEXT", 1 << 20, "bytes")
"""Size of class names and other short texts."""
PARAMETERS = Limit("SORA_MAX_PARAMETERS", 1 << 29, "parameters")
"""Size of a network of this package, checked before it is built."""
CLASSES = Limit("SORA_MAX_CLASSES", 100_000, "classes")
"""Number of classes of a data set."""
