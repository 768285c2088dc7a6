"""The documentation page of a method, which `sora show` prints."""

from __future__ import annotations

import inspect
from importlib import resources
from pathlib import Path

from sora.methods._base import info


def page(name: str) -> str:
    """The page of a method, or of the method it is a preset of; without a page, the class's own docstring."""
    entry = info(name)
    installed = resources.files("sora") / "method_pages"  # where a wheel holds docs/methods
    source = Path(__file__).parents[3] / "docs" / "methods"
    for folder in (installed, source):
        file = folder / f"{entry.family}.md"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return f"# {name}\n\n{inspect.cleandoc(entry.cls.__doc__ or entry.summary)}\n"
