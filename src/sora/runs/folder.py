"""The run folder: the one place that knows the names of its files and how each is read and written.

Everything but the logs is written under a temporary name and renamed, so that nobody ever reads half a file,
even if the process is killed while writing.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import Tensor

from sora._files import (
    JSON,
    SETTINGS,
    Limit,
    locked_folder,
    make_folder,
    parse_json,
    plain,
    read_text,
    remove_leftovers,
    write_json,
    write_text,
)
from sora.errors import RunError, UserError
from sora.runs import zoo
from sora.runs.checkpoints import Checkpoints, SnapshotFiles
from sora.runs.facts import EVALUATION, SUMMARY, check_result, with_checksum, without_checksum
from sora.runs.logs import LOGS, Log, LogName, LogStart, read_last_line, read_log
from sora.runs.weights import digest_file, is_whole, write_tensors
from sora.settings import Settings
from sora.settings.files import CHECKSUM, parse_config, parse_yaml

FORMAT = 2
DEPTH = 3  # of folders in which runs are looked for
_SHOWN = 8  # runs that an error lists


class RunFolder:
    """One training run on disk, in the folder `path`; nothing is created until something is written.

    `zoo:NAME` is a model that comes with the package: results measured later go to another folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.results = zoo.places(path)
        self._config = self.path / "config.yaml"
        self._model = self.path / "model.json"
        self._summary = self.path / "summary.json"
        self.weights = self.path / "model.safetensors"  # the final ones
        self.evaluations = self.results / "evaluation.json"  # records, merged over all evaluations
        self.evaluation_state = self.results / "evaluation-state"  # finished parts of evaluations under way
        self.evaluation_lock = self.results / ".evaluation.lock"  # held while records are changed
        self.tensorboard = self.path / "tensorboard"  # what the tracker of that name writes
        self.wandb = self.path / "wandb"  # what the tracker of that name writes
        self.exports = self.results / "export"  # what `sora export` writes by default
        self.probes = self.results / "probes"  # their numbers and pictures
        self.checkpoints = Checkpoints(self.path / "checkpoints")  # what a killed run continues from
        self.snapshots = SnapshotFiles(self.path / "snapshots")  # weights of single steps, for probes

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def name(self) -> str:
        """The folder's own name; `zoo:NAME` for a model of the zoo."""
        return self.path.resolve().name if self.results == self.path else f"{zoo.PREFIX}{self.path.name}"

    # What state the run is in.

    def exists(self) -> bool:
        """Return whether a run was started here."""
        return self._config.exists()

    def is_finished(self) -> bool:
        """Return whether the run has written its model and its summary."""
        return self._summary.exists()

    def has_model(self) -> bool:
        """Return whether the final weights are here."""
        return self._model.exists()

    def _runs_inside(self) -> str:
        """Name the runs inside this folder, for example of a comparison; empty if there are none."""
        names = [run.path.name for run in _runs_in(self.path, 1)] if self.path.is_dir() else []
        others = ", ..." if len(names) > _SHOWN else ""
        return f"; name one of the runs in it: {', '.join(names[:_SHOWN])}{others}" if names else ""

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
        """Delete unfinished files of killed processes; the caller holds the lock."""
        for folder in (self.path, self.snapshots.folder, self.checkpoints.folder, self.probes):
            remove_leftovers(folder)

    # Settings.

    def read_config(self) -> dict[str, Any]:
        """Read the settings as stored, by group."""
        if not self.exists():
            missing = f"it has no {self._config.name}{self._runs_inside()}"
            raise UserError(f"there is no run in {self.path}: {missing}")
        config = plain(self._read(self._config, parse=parse_yaml, limit=SETTINGS, remedy=""))
        return without_checksum(config, self._config)

    def read_settings(self) -> Settings:
        """Read the settings of the run."""
        return Settings.build(parse_config(self.read_config(), str(self._config)).values)

    def write_config(self, text: str) -> None:
        """Store the settings, once per run, after their checksum: what a truncated file has not lost."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self._config, f"{CHECKSUM}: '{with_checksum(parse_yaml(text))[CHECKSUM]}'\n{text}")

    # Logs.

    def log_path(self, name: LogName) -> Path:
        """Return the file of a log."""
        return self.path / f"{name}.jsonl"

    def open_log(self, name: LogName, start: LogStart | None = None) -> Log:
        """Open a log to append to, cut to its first part if one is given, else emptied."""
        return Log(self.log_path(name), start)

    def read_log(self, name: LogName) -> list[dict[str, Any]]:
        """Read the complete lines of a log; empty if there is none."""
        path = self.log_path(name)
        if path.exists() and path.stat().st_size > JSON.value:  # before it is read for its checksum
            raise JSON.refusal(str(path))
        digests = self._stored_summary().get("logs_blake2b")  # a run under way has none yet
        digest = digests.get(name) if isinstance(digests, dict) else None
        if digest is not None and (not path.exists() or digest_file(path) != digest):
            raise RunError(f"{path} is damaged or was changed: its checksum is not the one in summary.json")
        return read_log(path)

    def last_line(self, name: LogName) -> dict[str, Any] | None:
        """Read the newest complete line of a log; None if there is none."""
        return read_last_line(self.log_path(name))

    # The final model.

    def read_model(self) -> dict[str, Any]:
        """Read what rebuilds the model, and which of the run's weights are in the weights file."""
        if not self._model.exists():
            missing = f"it has no {self._model.name}{'' if self.exists() else self._runs_inside()}"
            raise UserError(f"there is no finished run in {str(self.path)!r}: {missing}")
        return without_checksum(self._read(self._model), self._model)

    def write_model(self, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
        """Write the final weights, then the description that says they are complete."""
        write_tensors(self.weights, tensors, {"format": "pt"})
        weights = {"weights_blake2b": digest_file(self.weights), "weights_bytes": self.weights.stat().st_size}
        write_json(self._model, with_checksum({"format": FORMAT, **description, **weights}))

    def unfinished(self, description: Mapping[str, Any]) -> str:
        """Say which weights a run has that was extended and has not ended since; empty for any other."""
        if self.is_finished() or not self.exists():
            return ""
        planned = parse_config(self.read_config(), str(self._config)).values.get("epochs")
        done = description.get("epochs", "fewer")
        start = f"the run in {self.path} is unfinished ({planned} epochs)"
        return "" if planned in (done, None) else f"{start}: these are its weights after {done} epochs"

    def check_weights(self, description: Mapping[str, Any]) -> None:
        """Raise if the final weights are not those that were written; warn if the run is to get others."""
        if note := self.unfinished(description):
            warnings.warn(note, stacklevel=2)
        if not self.weights.exists():
            return
        size = self.weights.stat().st_size  # compared first: another file may be large
        whole = is_whole(self.weights) and description.get("weights_bytes", size) == size
        if not whole or digest_file(self.weights) != description.get("weights_blake2b"):
            raise RunError(
                f"{self.weights} is damaged or was replaced: its checksum is not the one in model.json"
            )

    # Results.

    def read_summary(self) -> dict[str, Any]:
        """Read the summary; empty for a run that has not finished."""
        return check_result(self._stored_summary(), SUMMARY, self._summary) if self.is_finished() else {}

    def _stored_summary(self) -> dict[str, Any]:
        """Read the summary unchecked, so that a damaged one does not make the logs unreadable."""
        return dict(self._read(self._summary)) if self._summary.exists() else {}

    def reopen(self) -> None:
        """Make a finished run unfinished again, to be continued; its weights stay until then."""
        self._summary.unlink(missing_ok=True)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary: from now on the run counts as finished, and its logs stay as they are."""
        logs = {name: digest_file(path) for name in LOGS if (path := self.log_path(name)).exists()}
        write_json(self._summary, with_checksum({"format": FORMAT, **summary, "logs_blake2b": logs}))

    def read_evaluations(self) -> list[dict[str, Any]]:
        """Read all evaluation records, for a model of the zoo those it came with; empty if there is none."""
        path = self.evaluations if self.evaluations.exists() else self.path / self.evaluations.name
        records = self._read(path, list) if path.exists() else []
        return [check_result(record, EVALUATION, path) for record in records]

    def write_evaluations(self, records: list[dict[str, Any]]) -> None:
        """Replace the evaluation records, one per line."""
        lines = ",\n".join(json.dumps(with_checksum(record), allow_nan=False) for record in records)
        self.results.mkdir(parents=True, exist_ok=True)
        write_text(self.evaluations, f"[\n{lines}\n]\n")

    def write_card(self, markdown: str, entry: Mapping[str, Any]) -> None:
        """Write the model card for people and for programs."""
        self.results.mkdir(parents=True, exist_ok=True)
        write_text(self.results / f"{zoo.CARD}.md", markdown)
        write_json(self.results / f"{zoo.CARD}.json", entry)

    # Probes.

    def write_probe(self, name: str, result: Mapping[str, Any]) -> Path:
        """Store what a probe measured, with a checksum of the weights; `name` has probe and step."""
        make_folder(self.probes)
        path = self.probes / f"{name}.json"
        digest = self.digest_of_weights(result.get("at"))
        write_json(path, {"format": FORMAT, "weights_blake2b": digest, **result})
        return path

    def read_probe(self, name: str) -> dict[str, Any] | None:
        """Read what a probe measured; None if it has not run."""
        path = self.probes / f"{name}.json"
        return dict(self._read(path)) if path.exists() else None

    def digest_of_weights(self, step: Any = None) -> str | None:
        """Return the checksum of the weights that a probe measures: of a snapshot, else of the final ones."""
        path = self.snapshots.files().get(step) if isinstance(step, int) else self.weights
        return digest_file(path) if path is not None and path.exists() and is_whole(path) else None

    def _read(
        self,
        path: Path,
        kind: type = dict,
        *,
        parse: Callable[[str], Any] = parse_json,
        limit: Limit = JSON,
        remedy: str = "; move it away to go on without it",
    ) -> Any:
        try:
            value = parse(read_text(path, limit))
        except UserError:
            raise
        except ValueError as error:
            raise RunError(f"{path} is damaged ({error}){remedy}") from None
        if not isinstance(value, kind):
            raise RunError(f"{path} is damaged: expected a {kind.__name__}{remedy}")
        return value


def find_runs(paths: Iterable[str | Path]) -> list[RunFolder]:
    """Return each run once; a folder that is not a run means the runs up to `DEPTH` folders inside it."""
    found: dict[Path, RunFolder] = {}
    for folder in map(RunFolder, paths):
        if not folder.path.is_dir():
            name = folder.path.name.removeprefix("zoo-")
            hint = f"; the package has {zoo.PREFIX}{name}" if name in zoo.names() else ""
            raise UserError(f"there is no folder {str(folder.path)!r}{hint}")
        runs = [folder] if folder.exists() else _runs_in(folder.path, DEPTH)
        if not runs:
            folder.read_config()  # raises and says what is missing
        found |= {run.path.resolve(): run for run in runs}
    return list(found.values())


def _runs_in(path: Path, depth: int) -> list[RunFolder]:
    if RunFolder(path).exists():
        return [RunFolder(path)]
    inside = sorted(entry for entry in path.iterdir() if entry.is_dir()) if depth else []
    return [run for entry in inside for run in _runs_in(entry, depth - 1)]


def unique_labels(runs: Sequence[RunFolder]) -> list[str]:
    """Return the folders' names, with as many parents in front as it takes to tell them apart."""
    parts = [run.path.resolve().parts for run in runs]
    if len(set(parts)) < len(parts):
        raise UserError("the same run is named twice")
    depths = [1] * len(parts)
    while True:
        names = ["-".join(own[-depth:]) for own, depth in zip(parts, depths, strict=True)]
        longer = [
            min(depth + (names.count(name) > 1), len(own))
            for name, depth, own in zip(names, depths, parts, strict=True)
        ]
        if longer == depths:
            return names
        depths = longer
