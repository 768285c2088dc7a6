"""Fixtures of the tests of evaluations."""

from tests.attacks.short import short_autoattack

__all__ = ["short_autoattack"]
