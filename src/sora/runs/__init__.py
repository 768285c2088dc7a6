"""Run folders: names, readers and writers of their files, and the trained models in them."""

from sora.runs.data import load_data
from sora.runs.digests import digest_file, digest_model, plain_state
from sora.runs.folder import FORMAT, LOGS, LogName, RunFolder
from sora.runs.labels import unique_labels
from sora.runs.networks import (
    build_network,
    check_repeated,
    describe_network,
    load,
    load_network,
    load_weights,
)

__all__ = [
    "FORMAT",
    "LOGS",
    "LogName",
    "RunFolder",
    "build_network",
    "check_repeated",
    "describe_network",
    "digest_file",
    "digest_model",
    "load",
    "load_data",
    "load_network",
    "load_weights",
    "plain_state",
    "unique_labels",
]
