"""What a run prints while it works: a live line on a terminal, one line per epoch elsewhere."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from sora._process import tolerant

BAR = 12  # columns of the bar
TIME = 7  # columns of the remaining time


class Console:
    """Progress of one run; silent where `quiet`, and on all ranks but the first."""

    def __init__(self, title: str, total: int, epochs: int, quiet: bool) -> None:
        # A training goes on when its terminal or the pipe it prints to is closed.
        self.rich = RichConsole(file=tolerant(sys.stderr), quiet=quiet, highlight=False)
        self.live = self.rich.is_terminal and not quiet
        columns = (
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(),
            BarColumn(BAR),
            TextColumn("{task.fields[numbers]}"),
        )
        self.progress = Progress(*columns, console=self.rich, disable=not self.live)
        self.task: TaskID = self.progress.add_task(title, total=total, numbers="")
        self.title, self.total, self.epochs = title, total, epochs

    def __enter__(self) -> Console:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def advance(self, place: Mapping[str, int], line: Mapping[str, float], images_per_second: float) -> None:
        """Move the live line; elsewhere print a line at the end of an epoch."""
        numbers = [f"loss {line['loss']:.3f}"]
        if not math.isnan(line["pert_align"]):
            numbers.append(f"PertAlign {line['pert_align']:.2f}")
        if not math.isnan(line["step_size"]):
            numbers.append(f"alpha {line['step_size']:.4f}")
        numbers.append(f"{images_per_second:.0f} images/s")
        epoch = f"epoch {place['epoch']}/{self.epochs}"
        if not self.live:
            if place["step"] % (self.total // self.epochs) == 0:
                self.say("  ".join((epoch, *numbers)))
            return
        where = f"{epoch}  step {place['step']}/{self.total}"
        room = self.rich.width - len(where) - TIME - BAR - 3  # three single spaces between the columns
        self.progress.update(
            self.task, completed=place["step"], description=where, numbers=fitting(numbers, room)
        )

    @property
    def is_shown(self) -> bool:
        """Whether anything is printed."""
        return not self.rich.quiet

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Without the live line inside the block, so that another bar can be shown."""
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

    def say(self, text: str) -> None:
        """Print one line that stays."""
        self.rich.print(f"{self.title}: {text}", soft_wrap=True, markup=False)

    def warn(self, text: str) -> None:
        """Print one line that stays and stands out."""
        self.rich.print(f"{self.title}: {text}", style="bold yellow", soft_wrap=True, markup=False)


def fitting(parts: list[str], width: int) -> str:
    """As many of the parts, in order, as fit into the width."""
    text = ""
    for part in parts:
        longer = f"{text}  {part}" if text else part
        if len(longer) > width:
            break
        text = longer
    return text
