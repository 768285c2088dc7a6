"""What a run continues from, and that nothing of it is lost where it cannot."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import sora
from sora.cli import main
from sora.errors import RunError, UserError
from sora.runs import RunFolder
from sora.runs.resume import settings_of_run
from sora.settings import Request, Settings
from sora.training import train
from tests.training.disturbances import Killed, kill_at

BuildSettings = Callable[..., Settings]
RESULT = ("model.safetensors", "metrics.jsonl", "evals.jsonl", "events.jsonl")


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def result(settings: Settings) -> dict[str, bytes]:
    return {name: (settings.folder() / name).read_bytes() for name in RESULT}


@pytest.fixture
def killed(settings: BuildSettings) -> Settings:
    """A run killed after its seventh of nine steps, with checkpoints of steps 4 and 6."""
    config = settings(out="killed")
    with pytest.raises(Killed):
        train(config, hooks=[kill_at(7)], quiet=True)
    return config


@pytest.fixture
def whole(settings: BuildSettings) -> Settings:
    config = settings(out="whole")
    train(config, quiet=True)
    return config


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << 4
    path.unlink()  # hard links to the same file stay intact
    path.write_bytes(content)


def edit_config(config: Settings, old: str, new: str) -> None:
    file = config.folder() / "config.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


class TestOtherSettings:
    def test_an_edited_config_is_named_and_nothing_is_touched(self, killed: Settings, capsys: Any) -> None:
        edit_config(killed, "epochs: 3", "epochs: 5")
        before = files(killed.folder())
        assert main(["train", "--out", str(killed.folder()), "--resume", "--quiet"]) == 2
        error = capsys.readouterr().err
        assert "epochs 3 -> 5" in error
        assert error.count("\n") == 1
        assert files(killed.folder()) == before

    def test_the_run_goes_on_when_the_edit_is_undone(self, killed: Settings, whole: Settings) -> None:
        edit_config(killed, "epochs: 3", "epochs: 5")
        with pytest.raises(UserError):
            train(settings_of_run(Request({"out": str(killed.folder())}), "yes"), quiet=True)
        edit_config(killed, "epochs: 5", "epochs: 3")
        train(killed, quiet=True)
        assert result(killed) == result(whole)

    def test_train_refuses_a_folder_whose_config_differs(self, killed: Settings, settings: Any) -> None:
        shutil.rmtree(killed.folder() / "checkpoints")  # also before the first checkpoint
        before = files(killed.folder())
        with pytest.raises(UserError, match="has other settings: seed 0 -> 1"):
            train(settings(out="killed", seed=1), quiet=True)
        assert files(killed.folder()) == before


class TestDamage:
    @pytest.mark.parametrize("part", ["header", "first tensor", "last tensor", "settings", "digest"])
    def test_one_flipped_bit_falls_back_to_the_older_one(
        self, part: str, killed: Settings, whole: Settings, capfd: Any
    ) -> None:
        newest = RunFolder(killed.folder()).checkpoints.newest_first()[0]
        content = newest.read_bytes()
        data = 8 + int.from_bytes(content[:8], "little")
        positions = {
            "header": 40,
            "first tensor": data + 1,
            "last tensor": len(content) - 1,
            "settings": content.index(b"batch_size") + 14,
            "digest": content.index(b"blake2b:") + 12,
        }
        flip(newest, positions[part])
        train(killed)
        printed = capfd.readouterr().err
        assert f"{newest.name} " in printed
        assert "resuming from step 4" in printed
        assert result(killed) == result(whole)

    def test_any_flipped_bit_is_noticed_or_harmless(self, killed: Settings) -> None:
        checkpoints = RunFolder(killed.folder()).checkpoints
        newest = checkpoints.newest_first()[0]
        intact, content = checkpoints.read(newest), newest.read_bytes()
        data = 8 + int.from_bytes(content[:8], "little")
        noticed = 0
        for position in [*range(0, data, 13), *range(data, len(content), 401)]:
            damaged = bytearray(content)
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

    def test_if_both_are_broken_the_best_one_is_used(
        self, killed: Settings, whole: Settings, capfd: Any
    ) -> None:
        checkpoints = RunFolder(killed.folder()).checkpoints
        assert checkpoints.best.exists()
        for path in checkpoints.newest_first():
            flip(path, -1)
        train(killed)
        assert "(best.safetensors)" in capfd.readouterr().err
        assert result(killed) == result(whole)

    def test_if_none_can_be_read_the_run_is_refused_and_kept(self, killed: Settings, capsys: Any) -> None:
        for path in (killed.folder() / "checkpoints").iterdir():
            flip(path, -1)
        before = files(killed.folder())
        assert main(["train", "--out", str(killed.folder()), "--resume", "--quiet"]) == 1
        error = capsys.readouterr().err
        assert "is damaged: its checksum is wrong" in error
        assert error.count("\n") == 1
        assert files(killed.folder()) == before

    def test_lost_checkpoints_do_not_restart_a_long_run(self, killed: Settings) -> None:
        shutil.rmtree(killed.folder() / "checkpoints")
        before = files(killed.folder())
        with pytest.raises(RunError, match="lines of epoch 2 in its log, but no checkpoint"):
            train(killed, quiet=True)
        assert files(killed.folder()) == before

    def test_a_checkpoint_just_written_is_never_rotated_away(self, killed: Settings) -> None:
        """Broken files with higher numbers must not push out the new ones."""
        checkpoints = RunFolder(killed.folder()).checkpoints
        for number in (90, 91):
            (checkpoints.folder / f"step-0-{number:08d}.safetensors").write_bytes(b"broken")
        with pytest.raises(Killed):
            train(killed, hooks=[kill_at(8)], quiet=True)
        names = [path.name for path in checkpoints.newest_first()]
        assert "step-0-00000008.safetensors" in names
        assert len([name for name in names if name < "step-0-00000090"]) == 2

    def test_damaged_weights_are_not_loaded(self, whole: Settings) -> None:
        flip(whole.folder() / "model.safetensors", -1)
        with pytest.raises(RunError, match=r"model\.safetensors is damaged or was replaced"):
            sora.load(whole.folder())


class TestLogs:
    @pytest.mark.parametrize("damage", ["deleted", "emptied", "flipped", "early line removed"])
    def test_a_damaged_log_refuses_the_run(self, damage: str, killed: Settings) -> None:
        log = killed.folder() / "metrics.jsonl"
        if damage == "deleted":
            log.unlink()
        elif damage == "emptied":
            log.write_bytes(b"")
        elif damage == "flipped":
            flip(log, 20)
        else:
            log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[1:]) + b" " * 500)
        before = files(killed.folder())
        with pytest.raises(RunError, match=r"metrics\.jsonl (is missing|has 0 bytes|was changed)"):
            train(killed, quiet=True)
        assert files(killed.folder()) == before

    def test_a_shortened_log_falls_back_to_a_checkpoint_it_covers(
        self, killed: Settings, whole: Settings, capfd: Any
    ) -> None:
        log = killed.folder() / "metrics.jsonl"
        lines = log.read_bytes().splitlines(keepends=True)
        log.write_bytes(b"".join(lines[:3]))  # steps 2, 3 and 4
        train(killed)
        assert "resuming from step 4" in capfd.readouterr().err
        assert result(killed) == result(whole)
        assert b"\0" not in log.read_bytes()

    def test_logs_are_on_the_disk_before_a_checkpoint_counts_on_them(
        self, settings: BuildSettings, monkeypatch: Any
    ) -> None:
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

    def test_a_log_that_is_a_link_is_not_written_through(self, killed: Settings, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        log = killed.folder() / "metrics.jsonl"
        shutil.move(log, elsewhere)
        log.symlink_to(elsewhere)
        before = elsewhere.read_bytes()
        with pytest.raises(RunError, match=r"metrics.jsonl is a link"):
            train(killed, quiet=True)
        assert elsewhere.read_bytes() == before


def test_a_moved_run_trains_in_its_new_place(killed: Settings, whole: Settings, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.move(killed.folder(), moved)
    train(settings_of_run(Request({"out": str(moved)}), "yes"), quiet=True)
    assert not killed.folder().exists()
    for name in RESULT:
        assert (moved / name).read_bytes() == (whole.folder() / name).read_bytes()


def test_train_leaves_a_finished_run_alone(whole: Settings) -> None:
    before = files(whole.folder())
    with pytest.raises(UserError, match="is finished; choose another folder"):
        train(whole, quiet=True)
    assert files(whole.folder()) == before
