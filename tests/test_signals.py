"""Signals that arrive at awkward moments."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest
import torch

from sora._process import Interrupts, Stopped, stopping_soon
from sora.training.process import StopSignals


@pytest.fixture(autouse=True)
def usual_interrupts() -> Iterator[None]:
    """Python's own handler; a shell starts background processes with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


def test_a_signal_in_a_destructor_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        _remove_and_wait(signal.SIGINT)
    stopped = pytest.raises(Stopped, match="stopped by SIGTERM; kept")
    with stopped, Interrupts(), stopping_soon(lambda: "kept"):
        _remove_and_wait(signal.SIGTERM)
    assert capsys.readouterr().err == ""


def test_other_exceptions_in_destructors_are_shown_as_always(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: shown.append(dropped.exc_type))

    class Fails:
        def __del__(self) -> None:
            raise ValueError

    with Interrupts():
        Fails()
    assert shown == [ValueError]


def test_a_swallowed_interrupt_is_known_and_a_handler_of_the_host_program_is_kept() -> None:
    with Interrupts() as interrupts:
        with contextlib.suppress(KeyboardInterrupt):  # or turned into another exception
            signal.raise_signal(signal.SIGINT)
        assert interrupts.received
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    numbers: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: numbers.append(number))
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
    assert (numbers, interrupts.received) == ([signal.SIGINT], False)


def test_a_system_without_set_blocking_is_stopped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # which only Unix asks for
    monkeypatch.setattr(os, "pipe", lambda: (reader, writer))
    monkeypatch.delattr(os, "set_blocking")
    with pytest.raises(Stopped, match="stopped by SIGTERM; kept"), stopping_soon(lambda: "kept"):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("block", [lambda: stopping_soon(lambda: "kept"), lambda: StopSignals(1)])
def test_a_signal_that_was_ignored_at_the_start_stays_ignored(block) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with block() as signals:
        signal.raise_signal(signal.SIGINT)
    assert signals is None or signals.agreed(torch.device("cpu"), compare=True) is None  # type: ignore[attr-defined]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
