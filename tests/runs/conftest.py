"""A run small enough to be repeated in every test."""

from tests.training.conftest import one_thread, settings  # noqa: F401
