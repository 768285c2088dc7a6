"""What a run prints while it works: a live line on a terminal, one line per epoch elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Console:
    """Progress of one run; silent where `quiet`, and on all ranks but the first."""

    def __init__(self, title: str, total: int, epochs: int, quiet: bool) -> None:
        self.rich = RichConsole(stderr=True, quiet=quiet, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[numbers]}"))
        live = self.rich.is_terminal and not quiet
        self.progress = Progress(*columns, TimeRemainingColumn(), console=self.rich, disable=not live)
        self.task: TaskID = self.progress.add_task(title, total=total, numbers="")
        self.title, self.epochs = title, epochs

    def __enter__(self) -> Console:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def advance(self, place: Mapping[str, int], line: Mapping[str, float], images_per_second: float) -> None:
        """Move the live line."""
        parts = [f"epoch {place['epoch']}/{self.epochs}", f"loss {line['loss']:.3f}"]
        if not math.isnan(line["pert_align"]):
            parts.append(f"PertAlign {line['pert_align']:.2f}")
        if not math.isnan(line["step_size"]):
            parts.append(f"alpha {line['step_size']:.4f}")
        parts.append(f"{images_per_second:.0f} images/s")
        self.progress.update(self.task, completed=place["step"], numbers="  ".join(parts))

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
