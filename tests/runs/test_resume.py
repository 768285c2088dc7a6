"""Which settings a new or a resumed run gets."""

from __future__ import annotations

import shutil

import pytest

from sora.errors import UserError
from sora.runs.resume import settle
from sora.settings import Request, Resolved
from sora.training import train


@pytest.fixture
def finished(settings) -> Resolved:
    resolved = Resolved(settings(epochs=1, device="cpu"), {})
    train(resolved, quiet=True)
    return resolved


def test_a_used_folder_needs_resume(finished) -> None:
    out = str(finished.settings.folder())
    with pytest.raises(UserError, match="already holds a run; continue it with --resume"):
        settle(Request({"out": out}), None)
    assert settle(Request({"out": out}), "yes").settings == finished.settings
    assert settle(Request({"out": out}), "auto").settings == finished.settings
    assert settle(Request({"out": out}), "dry run").settings.epochs == 20  # a new run, not the stored one


def test_a_free_folder_cannot_be_resumed(tmp_path) -> None:
    request = Request({"out": str(tmp_path / "free")})
    with pytest.raises(UserError, match=r"no run in .* to resume; leave out --resume or use --resume auto"):
        settle(request, "yes")
    assert settle(request, "auto").settings.epochs == 20


def test_mistakes_are_reported_before_a_used_folder(finished) -> None:
    with pytest.raises(UserError, match="epochs is 0"):
        settle(Request({"out": str(finished.settings.folder()), "epochs": 0}), None)


def test_other_settings_are_named_and_refused(finished) -> None:
    request = Request({"out": str(finished.settings.folder()), "epochs": 7, "lr": 0.1})
    with pytest.raises(UserError, match=r"epochs 1 -> 7; lr 0.2 -> 0.1 \(only out, device"):
        settle(request, "yes")


def test_a_moved_run_continues_where_it_is_now(finished, tmp_path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.move(finished.settings.folder(), moved)
    assert settle(Request({"out": str(moved)}), "yes").settings.folder() == moved
