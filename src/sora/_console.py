"""The console that all tables and progress bars are printed to."""

import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console as RichConsole
from rich.segment import Segment

from sora._process import VISIBLE


class Console(RichConsole):
    """Rich's console, which writes its own control codes and makes those in names visible."""

    def __init__(self, **options: Any) -> None:
        stream = options.pop("file", None) or (sys.stderr if options.get("stderr") else sys.stdout)
        while hasattr(stream, "rich_proxied_file"):  # what it prints is escaped here, and only here
            stream = stream.rich_proxied_file
        super().__init__(file=stream, **options)

    def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
        """Yield the parts of what is printed."""
        for part in super().render(*arguments, **options):
            yield part if part.control else Segment(part.text.translate(VISIBLE), part.style)
