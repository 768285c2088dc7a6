"""What a run says while it works: a live line on a terminal, a line an epoch elsewhere."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from types import FrameType, TracebackType

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Console:
    """Progress of one run; silent when told so, and on all ranks but the first."""

    def __init__(self, title: str, total: int, quiet: bool) -> None:
        self.rich = RichConsole(stderr=True, quiet=quiet, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[numbers]}"))
        live = self.rich.is_terminal and not quiet
        self.progress = Progress(*columns, TimeRemainingColumn(), console=self.rich, disable=not live)
        self.task: TaskID = self.progress.add_task(title, total=total, numbers="")
        self.title = title

    def __enter__(self) -> Console:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def advance(self, step: int, row: Mapping[str, float], images_per_second: float) -> None:
        """Move the live line."""
        parts = [f"loss {row['loss']:.3f}"]
        if not math.isnan(row["pert_align"]):
            parts.append(f"PertAlign {row['pert_align']:.2f}")
        if not math.isnan(row["step_size"]):
            parts.append(f"step {row['step_size']:.4f}")
        parts.append(f"{images_per_second:.0f} images/s")
        self.progress.update(self.task, completed=step, numbers="  ".join(parts))

    def say(self, text: str) -> None:
        """One line that stays."""
        self.rich.print(f"{self.title}: {text}", soft_wrap=True, markup=False)

    def warn(self, text: str) -> None:
        """One line that stays and stands out."""
        self.rich.print(f"{self.title}: {text}", style="bold yellow", soft_wrap=True, markup=False)


class Signals:
    """Turns the first Ctrl-C or SIGTERM into a flag the loop looks at; a second one ends the process."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not in the main thread: then the host program owns the signals
                break
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        signal.signal(number, signal.SIG_DFL)


class Interrupted(Exception):
    """The run was asked to stop and has written a checkpoint."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} at step {step}; go on with --resume")
        self.exit_code = 128 + number
