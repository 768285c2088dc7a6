"""Progress bars of evaluations and probes, which may run for hours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from rich.progress import Progress
    from torch.utils.hooks import RemovableHandle


INTERVAL = 30.0  # seconds between two lines where there is no terminal


def _bar() -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from sora._console import Console

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    return Progress(*columns, *times, console=Console(stderr=True), transient=True)


@contextmanager
def progress_bar(title: str, total: int, show: bool) -> Iterator[Callable[[], None]]:
    """Show a bar over equal steps on a terminal; call the function it yields after each step."""
    bar = _bar() if show else None
    if bar is None or not bar.console.is_terminal:
        yield lambda: None
        return
    with bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


class PassMeter:
    """A progress bar that counts examples passing through a model; does nothing when not shown.

    Where standard error is not a terminal, it prints a line of text every `INTERVAL` seconds.
    """

    def __init__(self, model: nn.Module, show: bool) -> None:
        self._model, self._show = model, show
        self._stages: dict[str, int] = {}
        self._limit = 0.0  # highest count the bar may show before the current unit has ended
        self._bar: Progress | None = None
        self._last_line = time.monotonic()
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> PassMeter:
        if self._show:
            self._bar = _bar()
            self._task = self._bar.add_task("", total=None)
            if self._bar.console.is_terminal:
                self._bar.start()
            self.count(self._model)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            for hook in self._hooks:
                hook.remove()
            if self._bar.console.is_terminal:  # elsewhere it would print an empty line
                self._bar.stop()

    def count(self, model: nn.Module | None) -> None:
        """Count the passes through this module too."""
        if self._bar is not None and model is not None:
            self._hooks.append(model.register_forward_hook(self._count))

    @property
    def completed(self) -> float:
        """Examples counted so far."""
        return 0.0 if self._bar is None else self._bar.tasks[0].completed

    def plan(self, stage: str, passes: int) -> None:
        """Set how many examples a stage will pass through the model; may be corrected later."""
        self._stages[stage] = passes
        if self._bar is not None:
            self._bar.update(self._task, total=sum(self._stages.values()))

    @contextmanager
    def unit(self, title: str, passes: int) -> Iterator[None]:
        """Count a unit of work in full when it ends, even if the attack stopped early."""
        if self._bar is None:
            yield
            return
        self._limit = self.completed + passes
        self._bar.update(self._task, description=title)
        if not self._bar.console.is_terminal and time.monotonic() > self._last_line + INTERVAL:
            self._last_line = time.monotonic()
            self._bar.console.print(f"{title}: {self._bar.tasks[0].percentage:.0f} % done", highlight=False)
        yield
        self._bar.update(self._task, completed=self._limit)

    def _count(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        assert self._bar is not None
        self._bar.update(self._task, completed=min(self.completed + len(args[0]), self._limit))
