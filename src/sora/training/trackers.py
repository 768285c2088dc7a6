"""Trackers: the record of a run in TensorBoard or Weights & Biases, beside the run's own files.

A tracker is given the lines of the run's logs. When a run is resumed it is first given those that the logs
still hold, so that its record is complete and holds no step twice: TensorBoard's files are written anew, and
W&B is not sent the rows it already has.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sora._files import make_folder, plain
from sora.errors import UserError
from sora.training.hooks import Hook

if TYPE_CHECKING:
    from sora.evaluation import Evaluation
    from sora.training.run import Run


class TensorBoard:
    """Event files in the run folder, for `tensorboard --logdir`."""

    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        make_folder(run.folder.tensorboard)
        for old in run.folder.tensorboard.glob("events.out.tfevents.*"):  # what they hold is recorded again
            old.unlink()
        # A TensorBoard that has read those files drops what it has read, because of `purge_step`.
        self._writer: Any = SummaryWriter(str(run.folder.tensorboard), purge_step=0)
        self.text("settings", f"```yaml\n{run.resolved.described()}```")

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, new_style=True, double_precision=True)

    def text(self, name: str, text: str, step: int | None = None) -> None:
        """Record a text in Markdown, which may belong to a step."""
        self._writer.add_text(name, text, step)

    def close(self, finished: bool) -> None:
        """Write what is left."""
        self._writer.close()


class WandB:
    """A run of Weights & Biases, whose files are in the run folder; `WANDB_MODE=offline` sends nothing."""

    def __init__(self, run: Run) -> None:
        import wandb

        make_folder(run.folder.wandb)
        # The folders that W&B makes end with the id of its run.
        known = [path.name.rpartition("-")[2] for path in sorted(run.folder.wandb.glob("*run-*-*"))]
        self._run: Any = wandb.init(
            dir=str(run.folder.path),
            name=run.folder.name,
            id=known[0] if known else None,
            resume="allow" if known else None,
            config=run.settings.flat(),
            settings=wandb.Settings(console="off", silent=not run.console.is_shown),
        )
        self._run.define_metric("*", step_metric="step")
        self._rows = 0

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers of a step as one row, unless W&B has it from before the run was resumed."""
        if self._rows >= self._run.starting_step:
            self._run.log({"step": step, **values}, step=self._rows)
        self._rows += 1

    def text(self, name: str, text: str, step: int | None = None) -> None:
        """Record a text among the facts about the run."""
        self._run.summary[name if step is None else f"{name}/{step}"] = text

    def close(self, finished: bool) -> None:
        """Send what is left."""
        self._run.finish(exit_code=0 if finished else 1)


TRACKERS: dict[str, Callable[[Run], TensorBoard | WandB]] = {"tensorboard": TensorBoard, "wandb": WandB}
"""The class of each tracker's records; its name is also that of its package and of its extra."""


class Tracker(Hook):
    """Gives the lines of a run to one tracker. If that fails, training goes on without it, with a warning.

    Args:
        name: One of `TRACKERS`, whose package must be installed.
    """

    def __init__(self, name: str) -> None:
        if find_spec(name) is None:
            raise UserError(f"tracker {name} is not installed: pip install 'sora-at[{name}]'")
        self.name = name
        self._record: TensorBoard | WandB | None = None
        self._finished = False

    def start(self, run: Run) -> None:
        """Open the record and write what the logs already hold."""
        if run.writes:
            self._try(run, self._open, run)

    def on_log(self, run: Run, line: dict[str, Any]) -> None:
        """Record the line."""
        self._try(run, self._numbers, "train", line, line)

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        """Record the accuracies."""
        self._try(run, self._numbers, run.splits.watched_name, run.state.place(), evaluation.accuracy)

    def on_event(self, run: Run, line: dict[str, Any]) -> None:
        """Record an alarm, its end, or a return to earlier weights."""
        self._try(run, self._event, line)

    def end(self, run: Run, summary: dict[str, Any]) -> None:
        """Record the result on the test set."""
        self._finished = True
        self._try(run, self._numbers, "test", run.state.place(), summary["accuracy"])
        self._try(run, self._text, "result", result_table(summary))

    def close(self, run: Run) -> None:
        """Close the record."""
        record, self._record = self._record, None
        if record is not None:
            self._try(run, record.close, self._finished)

    def _open(self, run: Run) -> None:
        self._record = TRACKERS[self.name](run)
        folder, watched = run.folder, run.splits.watched_name
        lines = [("train", line, line) for line in folder.read_log("metrics")]
        lines += [(watched, line, line["accuracy"]) for line in folder.read_log("evals")]
        for line in sorted(lines, key=lambda line: (line[1]["attempt"], line[1]["step"])):
            self._numbers(*line)
        for event in folder.read_log("events"):
            self._event(event)

    def _numbers(self, kind: str, place: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        attempt = f", attempt {place['attempt'] + 1}" if place["attempt"] else ""
        numbers = {f"{kind}/{k}{attempt}": v for k, v in plain(values).items() if k not in _PLACE}
        numbers = {name: value for name, value in numbers.items() if value is not None}
        if self._record is not None:
            self._record.numbers(place["step"], numbers)

    def _event(self, line: Mapping[str, Any]) -> None:
        self._text("events", f"{line['event']}: `{json.dumps(plain(line))}`", line["step"])

    def _text(self, name: str, text: str, step: int | None = None) -> None:
        if self._record is not None:
            self._record.text(name, text, step)

    def _try(self, run: Run, act: Callable[..., None], *given: Any) -> None:
        """Call a function; the first failure ends the tracking and is the only one that is reported."""
        try:
            act(*given)
        except Exception as error:  # of code and of servers that are not ours
            record, self._record = self._record, None
            with contextlib.suppress(Exception):
                if record is not None:
                    record.close(finished=False)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            run.console.warn(f"tracker {self.name} failed, training goes on without it ({reason[:200]})")


_PLACE = ("step", "epoch", "attempt")


def result_table(summary: Mapping[str, Any]) -> str:
    """Return the accuracies on the test set as a Markdown table, and the verdict."""
    rows = [
        f"| {name} | {100 * share:.1f} % | {100 * own['low']:.1f} - {100 * own['high']:.1f} | {own['n']} |"
        for name, share in summary["accuracy"].items()
        for own in [summary["attacks"][name]]
    ]
    head = ["| attack | accuracy | 95 % interval | n |", "| --- | --: | --: | --: |"]
    return "\n".join([*head, *rows, "", f"verdict: {summary['co']['verdict']}"])
