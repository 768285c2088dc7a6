"""What a run prints while it works: a live line on a terminal, one line per epoch elsewhere."""

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from sora._console import Console as RichConsole
from sora._process import Tolerant

BAR = 12  # columns of the bar
TIME = 7  # columns of the remaining time


class Console:
    """Progress of one run; silent where `quiet`, and on all ranks but the first."""

    def __init__(self, title: str, total: int, epochs: int, quiet: bool) -> None:
        # A training goes on when its terminal or the pipe it prints to is closed.
        self.rich = RichConsole(file=Tolerant(sys.stderr), quiet=quiet, highlight=False)
        self.is_shown = not quiet
        self.live = self.rich.is_terminal and self.is_shown
        where, numbers = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[numbers]}")
        columns = where, TimeRemainingColumn(), BarColumn(BAR), numbers
        self.progress = Progress(*columns, console=self.rich, disable=not self.live)
        self.task: TaskID = self.progress.add_task(title, total=total, numbers="")
        self.title, self.total, self.epochs = title, total, epochs

    def __enter__(self) -> "Console":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def advance(self, line: Mapping[str, Any], images_per_second: float) -> None:
        """Move the live line; elsewhere print a line at the end of an epoch."""
        numbers = [f"loss {line['loss']:.3f}"]
        if not math.isnan(line["pert_align"]):
            numbers.append(f"PertAlign {line['pert_align']:.2f}")
        if not math.isnan(line["step_size"]):
            numbers.append(f"alpha {line['step_size']:.4f}")
        numbers.append(f"{images_per_second:.0f} images/s")
        epoch = f"epoch {line['epoch']}/{self.epochs}"
        if not self.live:
            if line["step"] % (self.total // self.epochs) == 0:
                self.say("  ".join((epoch, *numbers)))
            return
        where = f"{epoch}  step {line['step']}/{self.total}"
        room = self.rich.width - len(where) - TIME - BAR - 3  # three single spaces between the columns
        self.progress.update(
            self.task, completed=line["step"], description=where, numbers=fit_parts(numbers, room)
        )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the live line inside the block, so that another bar can be shown."""
        if self.progress.disable:
            yield
            return
        self.progress.live.transient = True  # leaves no copy of the line behind
        self.progress.stop()
        try:
            yield
        finally:
            self.progress.live.transient = False
            self.progress.start()

    def say(self, text: str, style: str | None = None) -> None:
        """Print one line that stays."""
        self.rich.print(f"{self.title}: {text}", style=style, soft_wrap=True, markup=False)

    def warn(self, text: str) -> None:
        """Print one line that stays and stands out."""
        self.say(text, style="bold yellow")


def fit_parts(parts: list[str], width: int) -> str:
    """Join as many of the parts, in order, as fit into the width."""
    texts = ("  ".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((text for text in texts if len(text) <= width), "")
