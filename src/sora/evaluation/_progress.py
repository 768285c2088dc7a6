"""How far an evaluation or a probe is, so that hours of work do not look like a halt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from rich.progress import Progress


SILENCE = 30  # seconds between lines where there is no terminal


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    return Progress(*columns, *times, console=Console(stderr=True), transient=True)


@contextmanager
def steps(title: str, total: int, show: bool) -> Iterator[Callable[[], None]]:
    """A bar over equal steps, shown on a terminal only; call what it yields after each of them."""
    bar = _progress() if show else None
    if bar is None or not bar.console.is_terminal:
        yield lambda: None
        return
    with bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


class Meter:
    """A progress bar that counts examples through the model; does nothing when not shown."""

    def __init__(self, model: nn.Module, show: bool) -> None:
        self._model, self._show = model, show
        self._plan: dict[str, int] = {}
        self._limit = 0.0  # where the bar may be at most before the present unit has ended
        self._bar: Progress | None = None
        self._told = time.monotonic()

    def __enter__(self) -> Meter:
        if self._show:
            self._bar = _progress()
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
            self._hook = self._model.register_forward_hook(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._hook.remove()
            self._bar.stop()

    def plan(self, stage: str, passes: int) -> None:
        """Expect so many examples through the model in a stage; may be corrected later."""
        self._plan[stage] = passes
        if self._bar is not None:
            self._bar.update(self._task, total=sum(self._plan.values()))

    @contextmanager
    def unit(self, title: str, passes: int) -> Iterator[None]:
        """A unit of work, counted in full when it ends, however early it found what it looked for."""
        if self._bar is None:
            yield
            return
        self._limit = self._bar.tasks[0].completed + passes
        self._bar.update(self._task, description=title)
        self._tell(title)
        yield
        self._bar.update(self._task, completed=self._limit)

    def _tell(self, title: str) -> None:
        """In a log file a bar is not seen: a line now and then."""
        assert self._bar is not None
        if not self._bar.console.is_terminal and time.monotonic() > self._told + SILENCE:
            self._told = time.monotonic()
            self._bar.console.print(f"{title}: {self._bar.tasks[0].percentage:.0f} % done", highlight=False)

    def _count(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        assert self._bar is not None
        done = self._bar.tasks[0].completed + len(args[0])
        self._bar.update(self._task, completed=min(done, self._limit))
