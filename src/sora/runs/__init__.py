"""Run folders: names, readers, writers, and the trained models in them."""

from sora.runs.folder import FORMAT, LOGS, RunFolder

__all__ = ["FORMAT", "LOGS", "RunFolder"]
