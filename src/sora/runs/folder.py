"""The run folder: the one place that knows the names of its files and how each is read and written.

Everything but the logs is written to a temporary name and renamed, so a reader or a kill at any moment never
meets half a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from torch import Tensor

from sora._files import plain, write_json, write_tensors, write_text
from sora.errors import RunError, UserError
from sora.runs.checkpoints import Checkpoints
from sora.runs.logs import Log, read_last_line, read_log
from sora.settings import Settings
from sora.settings.files import parse_config

FORMAT = 2  # 1: flat config.yaml, no format number in any file

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

    # Settings.

    @property
    def _config(self) -> Path:
        return self.path / "config.yaml"

    def read_config(self) -> dict[str, Any]:
        """The settings as stored, grouped (format 2) or flat (format 1)."""
        try:
            table = yaml.safe_load(self._config.read_text())
        except FileNotFoundError:
            raise UserError(f"there is no run in {self.path}: it has no {self._config.name}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise RunError(f"{self._config} is damaged ({' '.join(str(error).split())})") from None
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

    def open_log(self, name: LogName, length: int = 0) -> Log:
        """A log to append to, cut to `length` bytes first."""
        return Log(self.log_path(name), length)

    def read_log(self, name: LogName) -> list[dict[str, Any]]:
        """The complete lines of a log; empty if there is none."""
        return read_log(self.log_path(name))

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
        """What rebuilds the network, and which weights were handed over."""
        if not self._model.exists():
            raise UserError(f"there is no finished run in {str(self.path)!r}: it has no {self._model.name}")
        return dict(self._read_json(self._model))

    def write_model(self, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
        """Write the final weights, then the description that says they are complete."""
        write_tensors(self.weights, tensors, {"format": "pt"})
        write_json(self._model, {"format": FORMAT, **description})

    # Results.

    @property
    def _summary(self) -> Path:
        return self.path / "summary.json"

    def read_summary(self) -> dict[str, Any]:
        """The summary; empty for a run that has not finished."""
        return dict(self._read_json(self._summary)) if self._summary.exists() else {}

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary: from now on the run counts as finished."""
        write_json(self._summary, {"format": FORMAT, **summary})

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
        records = self._read_json(self.evaluations, list)
        if not all(isinstance(record, dict) for record in records):
            raise RunError(f"{self.evaluations} is not a list of records; move it away to start a new one")
        return list(records)

    def write_evaluations(self, records: list[dict[str, Any]]) -> None:
        """Replace the evaluation records, one per line."""
        lines = ",\n".join(json.dumps(plain(record), allow_nan=False) for record in records)
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

    def write_snapshot(self, step: int, attempt: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep the weights of a step for probes."""
        self._snapshots.mkdir(exist_ok=True)
        path = self._snapshots / f"step-{step:08d}-{attempt}.safetensors"
        write_tensors(path, tensors, {"format": "pt"})

    def snapshots(self) -> dict[int, Path]:
        """The steps whose weights were kept, in order; of several attempts the last one's file."""
        files = sorted(self._snapshots.glob("step-*.safetensors"))
        return {int(file.stem.split("-")[1]): file for file in files}

    def snapshot(self, step: int) -> Path:
        """The weights of one step."""
        found = self.snapshots()
        if step not in found:
            kept = ", ".join(map(str, found)) or "none"
            raise UserError(f"{self.path} has no snapshot of step {step}; it has: {kept}")
        return found[step]

    @property
    def _snapshots(self) -> Path:
        return self.path / "snapshots"

    # Probes.

    @property
    def probes(self) -> Path:
        """Where probes leave their numbers and pictures."""
        return self.path / "probes"

    def write_probe(self, name: str, result: Mapping[str, Any]) -> Path:
        """Keep what a probe measured; `name` tells probes and steps apart."""
        self.probes.mkdir(exist_ok=True)
        path = self.probes / f"{name}.json"
        write_json(path, {"format": FORMAT, **result})
        return path

    def _read_json(self, path: Path, kind: type = dict) -> Any:
        try:
            value = json.loads(path.read_text())
        except (ValueError, UnicodeDecodeError) as error:
            raise RunError(f"{path} is damaged ({error}); move it away to go on without it") from None
        if not isinstance(value, kind):
            raise RunError(f"{path} is damaged: expected a {kind.__name__}; move it away to go on without it")
        return value
