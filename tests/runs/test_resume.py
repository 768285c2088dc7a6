"""Which settings a new, a resumed or an extended run gets."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import sora
from sora import methods
from sora.cli import main
from sora.errors import RunError, UserError
from sora.methods import Crafted, Inputs, Method
from sora.runs import RunFolder
from sora.runs.resume import extend, settings_of_run
from sora.settings import Request, Resolved, Settings
from sora.training import train
from tests.runs.conftest import constant, content
from tests.training.helpers import Killed, kill_at


def request(folder: Path, **changes: Any) -> Request:
    return Request({"out": str(folder)} | changes)


@pytest.mark.parametrize(
    ("changes", "resume", "message"),
    [
        ({}, None, "already holds a run; continue it with --resume"),
        ({"epochs": 0}, None, "epochs is 0"),  # a mistake is reported before a used folder
        ({"epochs": 7, "lr": 0.1}, "yes", r"epochs 3 -> 7; lr 0.2 -> 0.1 \(only out, device"),
        ({"out": "free"}, "yes", r"no run in .* to resume; leave out --resume or use --resume auto"),
    ],
)
def test_a_request_that_does_not_fit_the_folder_is_refused(changes, resume, message, whole) -> None:
    with pytest.raises(UserError, match=message):
        settings_of_run(request(whole.folder(), **changes), resume)


def test_a_resumed_run_has_its_stored_settings_and_a_new_one_has_not(whole: Settings, tmp_path: Path) -> None:
    asked = request(whole.folder())
    assert settings_of_run(asked, "yes").settings == whole
    assert settings_of_run(asked, "auto").settings == whole
    assert settings_of_run(asked, None, dry_run=True).settings.epochs == 20
    assert settings_of_run(request(tmp_path / "free"), "auto").settings.epochs == 20


def test_a_config_that_was_cut_off_after_any_key_is_refused_or_complete(whole: Settings) -> None:
    """A cut behind `epochs:` leaves a value that is not a number."""
    path = whole.folder() / "config.yaml"
    text, asked = path.read_text(), whole.flat()
    cuts = [position + 1 for position, letter in enumerate(text) if letter == ":"]
    assert any(text[:cut].endswith("epochs:") for cut in cuts)
    for cut in cuts:
        path.write_text(text[:cut])
        with contextlib.suppress(UserError, RunError):  # any other exception is raw
            assert settings_of_run(Request(asked), "auto").settings == whole


@pytest.fixture
def two_epochs(copied: Callable[[str], RunFolder]) -> RunFolder:
    """A finished run that can be extended."""
    return copied("constant-2")


def lengthen(folder: RunFolder) -> Resolved:
    return settings_of_run(request(folder.path, epochs=3), "yes")


def weights(trained: Path, epochs: int) -> bytes:
    return RunFolder(trained / f"constant-{epochs}").weights.read_bytes()


def test_a_finished_run_with_more_epochs_gets_the_longer_runs_weights(two_epochs, trained) -> None:
    assert two_epochs.read_config()["recipe"] == "digits"
    longer = lengthen(two_epochs)
    assert not two_epochs.is_finished()
    assert two_epochs.read_config()["recipe"] == "digits"
    train(longer, quiet=True)
    assert two_epochs.weights.read_bytes() == weights(trained, 3)
    assert two_epochs.read_settings().epochs == 3
    before = content(two_epochs.path)
    extend(two_epochs, longer)  # by a process that had to wait for the lock
    assert content(two_epochs.path) == before


def test_a_killed_run_with_more_epochs_gets_the_longer_runs_weights(tmp_path: Path, trained: Path) -> None:
    folder = RunFolder(tmp_path / "short")
    with pytest.raises(Killed):
        train(constant(folder.path, 2), hooks=[kill_at(3)], quiet=True)
    train(lengthen(folder), quiet=True)
    assert folder.weights.read_bytes() == weights(trained, 3)


def test_a_run_in_use_is_not_extended_and_a_mistake_leaves_its_result(two_epochs: RunFolder) -> None:
    before = content(two_epochs.path)
    with two_epochs.lock(), pytest.raises(UserError, match="in use by another process"):
        lengthen(two_epochs)
    with pytest.raises(UserError, match="device"):
        settings_of_run(request(two_epochs.path, epochs=3, device="cuda:7"), "yes")
    assert content(two_epochs.path) == before


@pytest.mark.parametrize("epochs", [2, 3])
def test_a_kill_while_extending_leaves_an_unfinished_run_of_the_old_length(
    two_epochs, trained, monkeypatch, capsys, epochs
) -> None:
    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write_config", kill)
        with pytest.raises(Killed):
            lengthen(two_epochs)
    assert not two_epochs.is_finished()
    continued = settings_of_run(request(two_epochs.path, epochs=epochs), "yes")
    capsys.readouterr()
    train(continued)
    assert "resuming from step 4" in capsys.readouterr().err  # nothing is computed again
    assert two_epochs.read_summary()["epochs"] == epochs
    assert two_epochs.weights.read_bytes() == weights(trained, epochs)


@pytest.mark.filterwarnings("always:the run in")
@pytest.mark.parametrize("known", [True, False])
def test_an_unfinished_extension_says_which_weights_it_has(two_epochs, known, capsys) -> None:
    lengthen(two_epochs)
    if not known:  # as written before
        description = {key: value for key, value in two_epochs.read_model().items() if key != "epochs"}
        (two_epochs.path / "model.json").write_text(json.dumps(description))
    note = f"is unfinished (3 epochs): these are its weights after {2 if known else 'fewer'} epochs"
    command = ["evaluate", str(two_epochs.path), "--attacks", "clean", "--threads", "1", "--card", "--json"]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert note in printed.err
    assert json.loads(printed.out)[0]["unfinished"].endswith(note)
    card = (two_epochs.path / "model_card.md").read_text()
    assert card.startswith("# sora preactresnet18 digits (unfinished run)\n")
    assert note in card
    assert "| weights | `last` |" in card
    assert "| epochs |" not in card
    with pytest.warns(UserWarning, match="unfinished"):
        sora.load(two_epochs.path)


def test_of_several_processes_the_first_extends_and_the_others_wait(two_epochs, monkeypatch) -> None:
    ranks = []

    def first(seconds: float) -> None:
        with monkeypatch.context() as patched:
            patched.setenv("RANK", "0")
            ranks.append(lengthen(two_epochs))

    launched = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29999"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sora.runs.resume.time.sleep", first)
    ranks.append(lengthen(two_epochs))
    assert len(ranks) == 2
    assert ranks[0].settings == ranks[1].settings
    assert not two_epochs.is_finished()


def refuse_extension(folder: Path, reason: str, **changes: Any) -> None:
    """Assert that a run just started with these settings cannot be made longer."""
    started = RunFolder(folder)
    started.write_config(constant(folder, 2, **changes).stored())
    before = content(folder)
    with pytest.raises(UserError, match=reason):
        lengthen(started)
    assert content(folder) == before
    with pytest.raises(UserError, match="other settings: epochs 2 -> 1"):
        settings_of_run(request(folder, epochs=1), "yes")


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
    refuse_extension(tmp_path, reason, **changes)


def test_a_plugin_method_can_declare_that_it_depends_on_the_number_of_epochs(tmp_path: Path) -> None:
    @methods.register("toy-ramp", "ordinary training", uses_epochs=("attack_mode",))
    class Toy(Method):
        def craft(self, model: nn.Module, batch: Inputs) -> Crafted:
            return Crafted(batch.x)

    refuse_extension(tmp_path, "toy-ramp depends on the number of epochs", method="toy-ramp")
