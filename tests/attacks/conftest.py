"""Fixtures of the tests of attacks."""

from tests.attacks.short import short_autoattack

__all__ = ["short_autoattack"]
