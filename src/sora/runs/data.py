"""The data of a run, found from any folder: a run stores where its data is besides the name it was given."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sora import data
from sora.data import Dataset
from sora.runs.folder import RunFolder
from sora.settings import Settings, data_dir_of_run


def load_data(
    folder: RunFolder, settings: Settings, dataset: str | None = None, data_dir: str | None = None
) -> Dataset:
    """The data set of a run.

    Args:
        folder: The run folder.
        settings: Its settings.
        dataset: Another data set.
        data_dir: Another folder of data sets.
    """
    stored: dict[str, Any] = folder.read_config().get("absolute") or {}  # version 0.1.0 did not store it
    name, root = settings.dataset, settings.data_dir
    if _exists(str(stored.get("dataset", "")).partition(":")[2].partition("?")[0]):
        name = stored["dataset"]
    if _exists(stored.get("data_dir")):
        root = stored["data_dir"]
    place = data_dir_of_run(dataset or name, root, data_dir)
    if dataset is not None:
        return data.load(dataset, place)
    return dataclasses.replace(data.load(name, place), name=settings.dataset)


def _exists(path: str | None) -> bool:
    return bool(path) and Path(str(path)).exists()
