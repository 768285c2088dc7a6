"""What a run continues from, and that nothing of it is lost where it cannot."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from sora.cli import main
from sora.errors import RunError, UserError
from sora.runs import RunFolder
from sora.runs.resume import recover, settings_of_run
from sora.settings import Request, Settings
from sora.training import train
from tests.runs.conftest import content, flip
from tests.training.helpers import Killed, kill_at

RESULT = ("model.safetensors", "metrics.jsonl", "evals.jsonl", "events.jsonl")


def check_result(folder: Path, trained: Path) -> None:
    """Assert that a run ended as if it had never been disturbed."""
    for name in RESULT:
        assert (folder / name).read_bytes() == (trained / "whole" / name).read_bytes(), name


def test_an_edited_config_is_named_and_the_run_goes_on_when_the_edit_is_undone(
    killed, trained, capsys
) -> None:
    config = killed.folder() / "config.yaml"
    right = config.read_text()
    edited = right.replace("epochs: 3", "epochs: 5")
    reasons = {edited: (1, "config.yaml is damaged or was edited: its content does not match its checksum")}
    for line in (
        "null: 1",
        "epochs: " + ":".join(["59"] * 5_000),
    ):  # JSON has no such key, str() no such number
        reasons[f"{right}{line}\n"] = reasons[edited]
    reasons[edited.partition("\n")[2]] = (2, "epochs 3 -> 5")  # without the checksum
    for text, (code, reason) in reasons.items():
        config.write_text(text)
        before = content(killed.folder())
        assert main(["train", "--out", str(killed.folder()), "--resume", "--quiet"]) == code
        error = capsys.readouterr().err
        assert reason in error
        assert error.count("\n") == 1
        assert content(killed.folder()) == before
    config.write_text(right)
    train(killed, quiet=True)
    check_result(killed.folder(), trained)


def test_train_leaves_a_folder_with_other_settings_or_a_result_alone(killed, whole, settings) -> None:
    shutil.rmtree(killed.folder() / "checkpoints")  # also before the first checkpoint
    for config, message in (
        (settings(out="killed", seed=1), "has other settings: seed 0 -> 1"),
        (whole, "is finished; choose another folder"),
    ):
        before = content(config.folder())
        with pytest.raises(UserError, match=message):
            train(config, quiet=True)
        assert content(config.folder()) == before


@pytest.mark.parametrize("part", ["header", "first tensor", "last tensor", "settings", "digest"])
def test_after_one_flipped_bit_the_older_checkpoint_is_used(part, killed, trained, capfd) -> None:
    folder = RunFolder(killed.folder())
    newest, older = folder.checkpoints.newest_first()
    whole = newest.read_bytes()
    data = 8 + int.from_bytes(whole[:8], "little")
    positions = {
        "header": 40,
        "first tensor": data + 1,
        "last tensor": len(whole) - 1,
        "settings": whole.index(b"batch_size") + 14,
        "digest": whole.index(b"blake2b:") + 12,
    }
    flip(newest, positions[part])
    found = recover(folder, killed)
    assert found is not None
    assert (found.path, found.header["step"]) == (older, 4)
    assert f"{newest.name} " in found.passed_over[0]
    if part == "first tensor":
        train(killed)
        printed = capfd.readouterr().err
        assert f"{newest.name} " in printed
        assert "resuming from step 4" in printed
        check_result(killed.folder(), trained)


def test_any_flipped_bit_is_noticed_or_harmless(killed: Settings) -> None:
    checkpoints = RunFolder(killed.folder()).checkpoints
    newest = checkpoints.newest_first()[0]
    intact, whole = checkpoints.read(newest), newest.read_bytes()
    data = 8 + int.from_bytes(whole[:8], "little")
    noticed = 0
    for position in [*range(0, data, 61), *range(data, len(whole), 1999)]:
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        newest.write_bytes(damaged)
        try:
            tensors, header = checkpoints.read(newest)
        except RunError:
            noticed += 1
            continue
        assert header == intact[1]
        assert all(torch.equal(value, intact[0][name]) for name, value in tensors.items())
    assert noticed > 100


def test_if_the_newest_ones_are_broken_the_best_one_is_used(killed, trained, capfd) -> None:
    checkpoints = RunFolder(killed.folder()).checkpoints
    assert checkpoints.best.exists()
    for path in checkpoints.newest_first():
        flip(path, -1)
    train(killed)
    assert "(best.safetensors)" in capfd.readouterr().err
    check_result(killed.folder(), trained)


def remove_early_line(log: Path) -> None:
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[1:]) + b" " * 500)


def replace_by_link(log: Path) -> None:
    log.symlink_to(shutil.move(log, log.parents[1] / "elsewhere"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda log: shutil.rmtree(log.parent / "checkpoints"), "lines of epoch 2 in its log, but no check"),
        (lambda log: log.unlink(), r"metrics\.jsonl is missing"),
        (lambda log: log.write_bytes(b""), r"metrics\.jsonl has 0 bytes"),
        (lambda log: flip(log, 20), r"metrics\.jsonl was changed"),
        (remove_early_line, r"metrics\.jsonl was changed"),
        (replace_by_link, r"metrics\.jsonl is a link"),
    ],
)
def test_a_run_that_cannot_be_continued_is_refused_and_kept(damage, message: str, killed: Settings) -> None:
    damage(killed.folder() / "metrics.jsonl")
    before = content(killed.folder())
    with pytest.raises(RunError, match=message):
        train(killed, quiet=True)
    assert content(killed.folder()) == before


def test_if_no_checkpoint_can_be_read_the_command_says_so_in_one_line(killed, capsys) -> None:
    for path in (killed.folder() / "checkpoints").iterdir():
        flip(path, -1)
    before = content(killed.folder())
    assert main(["train", "--out", str(killed.folder()), "--resume", "--quiet"]) == 1
    error = capsys.readouterr().err
    assert "is damaged: its checksum is wrong" in error
    assert error.count("\n") == 1
    assert content(killed.folder()) == before


def test_a_checkpoint_just_written_is_never_rotated_away(killed: Settings) -> None:
    """Broken files with higher numbers must not push out the new ones."""
    checkpoints = RunFolder(killed.folder()).checkpoints
    for number in (90, 91):
        (checkpoints.folder / f"step-0-{number:08d}.safetensors").write_bytes(b"broken")
    with pytest.raises(Killed):
        train(killed, hooks=[kill_at(8)], quiet=True)
    names = [path.name for path in checkpoints.newest_first()]
    assert "step-0-00000008.safetensors" in names
    assert len([name for name in names if name < "step-0-00000090"]) == 2


def test_a_shortened_log_falls_back_to_a_checkpoint_it_covers(killed, trained, capfd) -> None:
    log = killed.folder() / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:3]))  # steps 2, 3 and 4
    train(killed)
    assert "resuming from step 4" in capfd.readouterr().err
    check_result(killed.folder(), trained)
    assert b"\0" not in log.read_bytes()


def test_logs_are_on_the_disk_before_a_checkpoint_counts_on_them(settings, monkeypatch) -> None:
    synced: list[str] = []
    original = os.fsync

    def fsync(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        original(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    train(settings(epochs=1, checkpoint_every=0), quiet=True)
    first = next(index for index, name in enumerate(synced) if name.startswith("step-0-"))
    assert "metrics.jsonl" in synced[:first]
    assert "evals.jsonl" in synced[:first]


def test_a_moved_run_trains_in_its_new_place(killed: Settings, trained: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.move(killed.folder(), moved)
    train(settings_of_run(Request({"out": str(moved)}), "yes"), quiet=True)
    assert not killed.folder().exists()
    check_result(moved, trained)
