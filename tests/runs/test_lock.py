"""One process trains in a run folder; the lock ends with it."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sora._files import locked, locked_folder, wait_until_free
from sora.cli import main
from sora.errors import RunError, UserError
from sora.runs import RunFolder

HOLD = "import sys; from pathlib import Path; from sora._files import locked_folder\n"
HOLD += "with locked_folder(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"


def holder(folder: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until its standard input ends."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_and_touches_nothing(tmp_path, capsys) -> None:
    folder = tmp_path / "run"
    with holder(folder) as first:
        before = sorted(folder.iterdir())
        flags = "--epochs 1 --width 4 --batch-size 32 --limit-train 64 --threads 1 --quiet"
        assert main(["train", *flags.split(), "--out", str(folder)]) == 2
        error = capsys.readouterr().err
        assert f"in use by another process (process {first.pid} on " in error
        assert error.count("\n") == 1
        assert sorted(folder.iterdir()) == before


def test_the_lock_ends_with_a_killed_process(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        with pytest.raises(UserError, match="in use"), locked_folder(tmp_path):
            pass
        first.kill()
        first.wait()
        with locked_folder(tmp_path):
            assert f"process {os.getpid()} on" in (tmp_path / ".lock").read_text()


def test_waiting_for_a_lock_which_holds_within_one_process_too(tmp_path: Path) -> None:
    with RunFolder(tmp_path).lock(), pytest.raises(UserError, match="in use"), RunFolder(tmp_path).lock():
        pass
    wait_until_free(tmp_path / "nothing", 60)
    with holder(tmp_path) as first:
        wait_until_free(tmp_path, 0.3)
        with pytest.raises(UserError), locked_folder(tmp_path):
            pass
        assert first.stdin is not None
        first.stdin.close()
        wait_until_free(tmp_path, 60)
        with locked_folder(tmp_path):
            pass


def test_a_folder_made_for_nothing_is_removed_and_an_older_one_stays(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.mkdir()
    for folder in (new, old):
        with locked_folder(folder):
            pass
    assert not new.exists()
    assert old.exists()
    with locked_folder(new):
        (new / "log").touch()
    assert (new / "log").exists()


def test_a_file_system_without_locks_is_used_without_one(tmp_path, monkeypatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked_folder(tmp_path / "run"), locked(tmp_path / "file"):
        assert (tmp_path / "file").exists()


def test_a_lock_file_that_is_a_link_or_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(RunError, match="is a link or a special file"), locked(tmp_path / name):
            pass
    assert not (tmp_path / "outside").exists()
