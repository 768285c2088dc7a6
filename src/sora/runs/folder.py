"""The run folder: the one place that knows the names of its files and how each is read and written.

Everything but the logs is written under a temporary name and renamed, so that nobody ever reads half a file,
even if the process is killed while writing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from sora._files import locked_folder, make_folder, remove_leftovers, write_json, write_text
from sora._reading import SETTINGS, parse_json, read_text
from sora.errors import RunError, UserError
from sora.runs.checkpoints import Checkpoints
from sora.runs.digests import digest_file, with_checksum, without_checksum
from sora.runs.logs import Log, LogStart, read_last_line, read_log
from sora.runs.shapes import check_evaluations, check_summary
from sora.runs.snapshots import Snapshots
from sora.runs.tensors import write_tensors
from sora.settings import Settings
from sora.settings.files import parse_config, parse_yaml

FORMAT = 2  # 1: flat config.yaml, no format number in any file

_SHOWN = 8  # runs that an error lists
LogName = Literal["metrics", "evals", "events", "monitors"]
LOGS: tuple[LogName, ...] = ("metrics", "evals", "events", "monitors")


class RunFolder:
    """One training run on disk.

    Args:
        path: The folder; nothing is created until something is written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.resolve().name

    # What state the run is in.

    def exists(self) -> bool:
        """Whether a run was started here."""
        return self._config.exists()

    def is_finished(self) -> bool:
        """Whether the run has written its model and its summary."""
        return self._summary.exists()

    def has_model(self) -> bool:
        """Whether the final weights are here."""
        return self._model.exists()

    def _runs_inside(self) -> str:
        """A hint at the runs in this folder, which may be that of a comparison; empty without any."""
        runs = sorted(config.parent.name for config in self.path.glob(f"*/{self._config.name}"))
        if not runs:
            return ""
        others = ", ..." if len(runs) > _SHOWN else ""
        return f"; name one of the runs in it: {', '.join(runs[:_SHOWN])}{others}"

    def refuse_finished(self) -> None:
        """Raise if the run has finished: its result is never overwritten."""
        if self.is_finished():
            raise UserError(
                f"the run in {self.path} is finished; choose another folder, or load it with sora.load"
            )

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from training here; a `UserError` if one does."""
        return locked_folder(self.path)

    def remove_leftovers(self) -> None:
        """Delete what killed processes left half-written; the caller holds the lock."""
        for folder in (self.path, self.snapshots.folder, self.checkpoints.folder, self.probes):
            remove_leftovers(folder)
        self.checkpoints.remove_leftovers()

    # Settings.

    @property
    def _config(self) -> Path:
        return self.path / "config.yaml"

    def read_config(self) -> dict[str, Any]:
        """The settings as stored, grouped (format 2) or flat (format 1)."""
        try:
            table = parse_yaml(read_text(self._config, SETTINGS))
        except FileNotFoundError:
            raise UserError(
                f"there is no run in {self.path}: it has no {self._config.name}{self._runs_inside()}"
            ) from None
        except UserError:
            raise
        except ValueError as error:
            raise RunError(f"{self._config} is damaged ({error})") from None
        if not isinstance(table, dict):
            raise RunError(f"{self._config} is damaged: it is not a table of settings")
        return table

    def read_settings(self) -> Settings:
        """The settings of the run."""
        return Settings.build(parse_config(self.read_config(), str(self._config)).values)

    def write_config(self, text: str) -> None:
        """Store the settings, once per run."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self._config, text)

    # Logs.

    def log_path(self, name: LogName) -> Path:
        """The file of a log."""
        return self.path / f"{name}.jsonl"

    def open_log(self, name: LogName, start: LogStart | None = None) -> Log:
        """A log to append to, cut to its first part if one is given, else emptied."""
        return Log(self.log_path(name), start)

    def read_log(self, name: LogName) -> list[dict[str, Any]]:
        """The complete lines of a log; empty if there is none."""
        path = self.log_path(name)
        digests = self._stored_summary().get("logs_blake2b")  # older versions stored none
        digest = digests.get(name) if isinstance(digests, dict) else None
        if digest is not None and (not path.exists() or digest_file(path) != digest):
            raise RunError(f"{path} is damaged or was changed: its checksum is not the one in summary.json")
        return read_log(path)

    def last_line(self, name: LogName) -> dict[str, Any] | None:
        """The newest complete line of a log; None if there is none."""
        return read_last_line(self.log_path(name))

    # The final model.

    @property
    def _model(self) -> Path:
        return self.path / "model.json"

    @property
    def weights(self) -> Path:
        """The final weights."""
        return self.path / "model.safetensors"

    def read_model(self) -> dict[str, Any]:
        """What rebuilds the network, and which of the run's weights are in the weights file."""
        if not self._model.exists():
            missing = f"it has no {self._model.name}{'' if self.exists() else self._runs_inside()}"
            raise UserError(f"there is no finished run in {str(self.path)!r}: {missing}")
        return dict(self._read_json(self._model))

    def write_model(self, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
        """Write the final weights, then the description that says they are complete."""
        write_tensors(self.weights, tensors, {"format": "pt"})
        digest = digest_file(self.weights)
        write_json(self._model, {"format": FORMAT, **description, "weights_blake2b": digest})

    def check_weights(self, description: Mapping[str, Any]) -> None:
        """Raise if the final weights are not those that were written; older versions stored no checksum."""
        digest = description.get("weights_blake2b")
        if digest is not None and self.weights.exists() and digest_file(self.weights) != digest:
            raise RunError(
                f"{self.weights} is damaged or was replaced: its checksum is not the one in model.json"
            )

    # Results.

    @property
    def _summary(self) -> Path:
        return self.path / "summary.json"

    def read_summary(self) -> dict[str, Any]:
        """The summary; empty for a run that has not finished."""
        return check_summary(self._stored_summary(), self._summary) if self.is_finished() else {}

    def _stored_summary(self) -> dict[str, Any]:
        """The summary unchecked, so that a damaged one does not make the logs unreadable."""
        return dict(self._read_json(self._summary)) if self._summary.exists() else {}

    def reopen(self) -> None:
        """Make a finished run unfinished again, to be continued; its weights stay until then."""
        self._summary.unlink(missing_ok=True)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary: from now on the run counts as finished, and its logs stay as they are."""
        logs = {name: digest_file(path) for name in LOGS if (path := self.log_path(name)).exists()}
        write_json(self._summary, {"format": FORMAT, **summary, "logs_blake2b": logs})

    @property
    def evaluations(self) -> Path:
        """The list of evaluation records, merged over all evaluations."""
        return self.path / "evaluation.json"

    @property
    def evaluation_state(self) -> Path:
        """Finished parts of evaluations that are still under way."""
        return self.path / "evaluation-state"

    @property
    def evaluation_lock(self) -> Path:
        """Locked while evaluation records are changed."""
        return self.path / ".evaluation.lock"

    def read_evaluations(self) -> list[dict[str, Any]]:
        """All evaluation records; empty if there is none."""
        if not self.evaluations.exists():
            return []
        records = check_evaluations(self._read_json(self.evaluations, list), self.evaluations)
        return [without_checksum(record, self.evaluations) for record in records]

    def write_evaluations(self, records: list[dict[str, Any]]) -> None:
        """Replace the evaluation records, one per line."""
        lines = ",\n".join(json.dumps(with_checksum(record), allow_nan=False) for record in records)
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.evaluations, f"[\n{lines}\n]\n")

    def write_card(self, markdown: str, entry: Mapping[str, Any]) -> None:
        """Write the model card for people and for programs."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.path / "model_card.md", markdown)
        write_json(self.path / "model_card.json", entry)

    # Checkpoints and snapshots.

    @property
    def checkpoints(self) -> Checkpoints:
        """The files a killed run continues from."""
        return Checkpoints(self.path / "checkpoints")

    @property
    def snapshots(self) -> Snapshots:
        """The weights of single steps, kept for probes."""
        return Snapshots(self.path / "snapshots")

    # Probes.

    @property
    def probes(self) -> Path:
        """Where probes leave their numbers and pictures."""
        return self.path / "probes"

    def write_probe(self, name: str, result: Mapping[str, Any]) -> Path:
        """Keep what a probe measured, with a checksum of the weights; `name` tells probes and steps apart."""
        make_folder(self.probes)
        path = self.probes / f"{name}.json"
        write_json(
            path, {"format": FORMAT, "weights_blake2b": self.digest_of_weights(result.get("at")), **result}
        )
        return path

    def read_probe(self, name: str) -> dict[str, Any] | None:
        """What a probe measured; None if it did not."""
        path = self.probes / f"{name}.json"
        return dict(self._read_json(path)) if path.exists() else None

    def digest_of_weights(self, step: Any = None) -> str | None:
        """The checksum of the weights that a probe measures: those of a snapshot, else the final ones."""
        path = self.snapshots.files().get(step) if isinstance(step, int) else self.weights
        return digest_file(path) if path is not None and path.exists() else None

    def _read_json(self, path: Path, kind: type = dict) -> Any:
        try:
            value = parse_json(read_text(path))
        except UserError:
            raise
        except ValueError as error:
            raise RunError(f"{path} is damaged ({error}); move it away to go on without it") from None
        if not isinstance(value, kind):
            raise RunError(f"{path} is damaged: expected a {kind.__name__}; move it away to go on without it")
        return value
