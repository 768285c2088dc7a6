"""Signals that arrive at awkward moments."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from sora._signals import Stopped, never_dropped, stopping_soon


class _SignalWhenRemoved:
    """Sends a signal from its destructor, whose exceptions Python drops."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


def _remove_and_wait(number: int) -> None:
    _SignalWhenRemoved(number)
    for _ in range(3000):  # ended by the signal that is sent again
        time.sleep(0.01)


def test_an_interrupt_in_a_destructor_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), never_dropped():
        _remove_and_wait(signal.SIGINT)
    assert capsys.readouterr().err == ""


def test_a_stop_in_a_destructor_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(Stopped, match="stopped by SIGTERM; kept"),
        never_dropped(),
        stopping_soon(lambda: "kept"),
    ):
        _remove_and_wait(signal.SIGTERM)
    assert capsys.readouterr().err == ""


def test_other_exceptions_in_destructors_are_shown_as_always(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: shown.append(dropped.exc_type))

    class Fails:
        def __del__(self) -> None:
            raise ValueError

    with never_dropped():
        Fails()
    assert shown == [ValueError]
