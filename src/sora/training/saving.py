"""When checkpoints are written: at the end of an epoch, where asked, and before a run stops on a signal."""

from __future__ import annotations

import signal
from types import FrameType

from sora.training.distributed import any_rank
from sora.training.hooks import Hook
from sora.training.interrupts import Interrupted
from sora.training.run import Run


class Saving(Hook):
    """Writes checkpoints, and turns the first Ctrl-C or SIGTERM into one; a second ends the process."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._handlers: dict[int, object] = {}
        self._run: Run | None = None

    def start(self, run: Run) -> None:
        """Remember the run that a signal stops."""
        self._run = run

    def __enter__(self) -> Saving:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._handlers[number] = signal.signal(number, self._note)
            except ValueError:  # not in the main thread: then the host program handles signals
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._received = number
        signal.signal(number, signal.SIG_DFL)
        if self._run is not None:
            self._run.stop(number)

    def on_save_point(self, run: Run) -> None:
        """Write a checkpoint if one is due; stop if a signal came."""
        state, every = run.state, run.settings.checkpoint_every
        interrupted = self._interrupted(run)
        due = state.epoch_ends or run.is_good or (every and state.step % every == 0)
        if due or interrupted:
            # An undisturbed run would not average its ranks' statistics here, so an interruption must not.
            run.save(best=run.is_best, good=run.is_good, average=bool(due))
        run.is_best = run.is_good = False
        if interrupted:
            raise Interrupted(interrupted, state.step)

    def _interrupted(self, run: Run) -> int | None:
        """The signal to stop for. Several ranks must agree on it, and compare only at log steps."""
        if run.world == 1:
            return self._received
        logged = run.state.step % run.settings.log_every == 0 or run.state.epoch_ends
        received = logged and any_rank(self._received is not None, run.device)
        return self._received or signal.SIGTERM if received else None
