"""Run folders: names, readers and writers of their files, and the trained models in them."""

from sora.runs.folder import FORMAT, RunFolder, find_runs, unique_labels
from sora.runs.logs import LOGS, LogName
from sora.runs.models import build_model, check_repeated, describe_model, load, load_data, load_model
from sora.runs.weights import digest_file, digest_model, load_weights, plain_state

__all__ = [
    "FORMAT",
    "LOGS",
    "LogName",
    "RunFolder",
    "build_model",
    "check_repeated",
    "describe_model",
    "digest_file",
    "digest_model",
    "find_runs",
    "load",
    "load_data",
    "load_model",
    "load_weights",
    "plain_state",
    "unique_labels",
]
