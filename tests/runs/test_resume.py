"""Which settings a new or a resumed run gets."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from sora import methods
from sora.errors import RunError, UserError
from sora.methods import Crafted, Inputs, Method
from sora.runs import RunFolder
from sora.runs.resume import extend, settings_of_run
from sora.settings import Request, Resolved
from sora.training import train
from tests.training.disturbances import Killed, kill_at


@pytest.fixture
def finished(settings) -> Resolved:
    resolved = Resolved(settings(epochs=1, device="cpu"), {})
    train(resolved, quiet=True)
    return resolved


def test_a_used_folder_needs_resume(finished) -> None:
    out = str(finished.settings.folder())
    with pytest.raises(UserError, match="already holds a run; continue it with --resume"):
        settings_of_run(Request({"out": out}), None)
    assert settings_of_run(Request({"out": out}), "yes").settings == finished.settings
    assert settings_of_run(Request({"out": out}), "auto").settings == finished.settings
    assert (
        settings_of_run(Request({"out": out}), None, dry_run=True).settings.epochs == 20
    )  # a new run, not the stored one


def test_a_free_folder_cannot_be_resumed(tmp_path) -> None:
    request = Request({"out": str(tmp_path / "free")})
    with pytest.raises(UserError, match=r"no run in .* to resume; leave out --resume or use --resume auto"):
        settings_of_run(request, "yes")
    assert settings_of_run(request, "auto").settings.epochs == 20


def test_mistakes_are_reported_before_a_used_folder(finished) -> None:
    with pytest.raises(UserError, match="epochs is 0"):
        settings_of_run(Request({"out": str(finished.settings.folder()), "epochs": 0}), None)


def test_other_settings_are_named_and_refused(finished) -> None:
    request = Request({"out": str(finished.settings.folder()), "epochs": 7, "lr": 0.1})
    with pytest.raises(UserError, match=r"epochs 1 -> 7; lr 0.2 -> 0.1 \(only out, device"):
        settings_of_run(request, "yes")


def test_a_config_that_was_cut_off_after_any_key_is_refused_or_complete(finished) -> None:
    """A cut behind `epochs:` leaves a value that is not a number."""
    path = finished.settings.folder() / "config.yaml"
    whole, request = path.read_text(), finished.settings.flat()
    cuts = [position + 1 for position, letter in enumerate(whole) if letter == ":"]
    assert any(whole[:cut].endswith("epochs:") for cut in cuts)
    for cut in cuts:
        path.write_text(whole[:cut])
        with contextlib.suppress(UserError, RunError):  # any other exception is raw
            assert settings_of_run(Request(request), "auto").settings == finished.settings


def test_a_moved_run_continues_where_it_is_now(finished, tmp_path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.move(finished.settings.folder(), moved)
    assert settings_of_run(Request({"out": str(moved)}), "yes").settings.folder() == moved


def constant(out: Path, epochs: int) -> dict[str, Any]:
    values = {"dataset": "digits", "epochs": epochs, "batch_size": 32, "width": 4, "limit_train": 64}
    values |= {"limit_test": 20, "holdout": 20, "attacks": "clean", "threads": 1, "out": str(out)}
    return values | {"schedule": "multistep", "milestones": "", "lr": 0.05, "set": {"model.stages": 1}}


@pytest.mark.parametrize("finished", [True, False])
def test_a_constant_rate_allows_more_epochs_and_gives_the_longer_runs_weights(tmp_path, finished) -> None:
    train(settings_of_run(Request(constant(tmp_path / "long", 3)), None), quiet=True)
    short = settings_of_run(Request(constant(tmp_path / "short", 2)), None)
    if finished:
        train(short, quiet=True)
    else:
        with pytest.raises(Killed):
            train(short, hooks=[kill_at(3)], quiet=True)
    longer = settings_of_run(Request({"out": str(tmp_path / "short"), "epochs": 3}), "yes")
    assert not RunFolder(tmp_path / "short").is_finished()
    train(longer, quiet=True)
    weights = [RunFolder(tmp_path / name).weights.read_bytes() for name in ("short", "long")]
    assert weights[0] == weights[1]
    assert RunFolder(tmp_path / "short").read_settings().epochs == 3


@pytest.fixture
def two_epochs(tmp_path) -> RunFolder:
    train(settings_of_run(Request(constant(tmp_path / "run", 2)), None), quiet=True)
    return RunFolder(tmp_path / "run")


def lengthen(folder: RunFolder) -> Resolved:
    return settings_of_run(Request({"out": str(folder.path), "epochs": 3}), "yes")


def content(folder: RunFolder) -> dict[Path, bytes]:
    files = (path for path in folder.path.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: path.read_bytes() for path in files}


def test_a_run_that_another_process_uses_is_not_extended(two_epochs) -> None:
    before = content(two_epochs)
    with two_epochs.lock(), pytest.raises(UserError, match="in use by another process"):
        lengthen(two_epochs)
    assert content(two_epochs) == before


def test_an_extended_run_that_has_finished_is_not_opened_again(two_epochs) -> None:
    longer = lengthen(two_epochs)
    train(longer, quiet=True)
    before = content(two_epochs)
    extend(two_epochs, longer)  # by a process that had to wait for the lock
    assert content(two_epochs) == before


@pytest.mark.parametrize("epochs", [2, 3])
def test_a_kill_while_extending_leaves_an_unfinished_run_of_the_old_length(
    two_epochs, monkeypatch, tmp_path, capsys, epochs
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write_config", raise_killed)
        with pytest.raises(Killed):
            lengthen(two_epochs)
    assert not two_epochs.is_finished()
    continued = settings_of_run(Request({"out": str(two_epochs.path), "epochs": epochs}), "yes")
    capsys.readouterr()
    train(continued)
    assert "resuming from step 4" in capsys.readouterr().err  # nothing is computed again
    assert two_epochs.read_summary()["epochs"] == epochs
    train(settings_of_run(Request(constant(tmp_path / "whole", epochs)), None), quiet=True)
    assert two_epochs.weights.read_bytes() == RunFolder(tmp_path / "whole").weights.read_bytes()


def raise_killed(*_: Any) -> None:
    raise Killed


def test_of_several_processes_the_first_extends_and_the_others_wait(two_epochs, monkeypatch) -> None:
    ranks = []

    def first(seconds: float) -> None:
        with monkeypatch.context() as patched:
            patched.setenv("RANK", "0")
            ranks.append(lengthen(two_epochs))

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("sora.runs.resume.time.sleep", first)
    ranks.append(lengthen(two_epochs))
    assert len(ranks) == 2
    assert ranks[0].settings == ranks[1].settings
    assert not two_epochs.is_finished()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schedule": "cyclic"}, "cyclic learning rate of past steps depends on the number of epochs"),
        ({"schedule": "cosine"}, "cosine learning rate of past steps depends on the number of epochs"),
        ({"milestones": "0.5"}, "milestones are fractions"),
        ({"guard": "rollback"}, "guard rollback keeps states"),
        ({"keep": "best"}, "keep best keeps the weights of an epoch"),
        ({"keep": "best-robust"}, "keep best-robust keeps the weights of an epoch"),
        ({"method": "liet"}, "liet depends on the number of epochs"),
        ({"method": "tdat"}, "tdat depends on the number of epochs"),
    ],
)
def test_more_epochs_are_refused_with_the_reason_elsewhere(tmp_path, changes, reason) -> None:
    resolved = settings_of_run(Request(constant(tmp_path / "a", 2) | changes), None)
    with pytest.raises(Killed):
        train(resolved, hooks=[kill_at(3)], quiet=True)
    before = (tmp_path / "a" / "config.yaml").read_bytes()
    with pytest.raises(UserError, match=reason):
        settings_of_run(Request({"out": str(tmp_path / "a"), "epochs": 3}), "yes")
    assert (tmp_path / "a" / "config.yaml").read_bytes() == before
    with pytest.raises(UserError, match="other settings: epochs 2 -> 1"):
        settings_of_run(Request({"out": str(tmp_path / "a"), "epochs": 1}), "yes")


def test_a_plugin_method_can_declare_that_it_depends_on_the_number_of_epochs(tmp_path) -> None:
    @methods.register("toy-ramp", "ordinary training", uses_epochs=("attack_mode",))
    class Toy(Method):
        def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
            return Crafted(batch.x)

    resolved = settings_of_run(Request(constant(tmp_path / "a", 2) | {"method": "toy-ramp"}), None)
    with pytest.raises(Killed):
        train(resolved, hooks=[kill_at(3)], quiet=True)
    with pytest.raises(UserError, match="toy-ramp depends on the number of epochs"):
        lengthen(RunFolder(tmp_path / "a"))


def test_a_mistake_leaves_the_result_of_a_run_that_is_to_be_extended(two_epochs) -> None:
    before = content(two_epochs)
    with pytest.raises(UserError, match="device"):
        settings_of_run(Request({"out": str(two_epochs.path), "epochs": 3, "device": "cuda:7"}), "yes")
    assert content(two_epochs) == before


def test_an_extended_run_keeps_its_recipe(two_epochs) -> None:
    recipe = two_epochs.read_config()["recipe"]
    assert recipe == "digits"
    lengthen(two_epochs)
    assert two_epochs.read_config()["recipe"] == recipe
