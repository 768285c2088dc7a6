"""Atomic writing: modes, and what a killed process leaves behind."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sora import _files
from sora._files import link, remove_leftovers, write_text
from sora.experiments.tables import markdown_table
from sora.runs.weights import write_tensors

KILLED = """
import os, signal, sys
from pathlib import Path
from sora import _files
_files.os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
_files.write_text(Path(sys.argv[1]), "text" * 1000)
"""


@pytest.fixture
def leftover(tmp_path: Path) -> Path:
    """What a process leaves that is killed when it has written a file but not renamed it."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "big.txt")], check=False)
    assert done.returncode == -signal.SIGKILL
    (found,) = tmp_path.iterdir()
    assert (found / "big.txt").stat().st_size == 4000
    return found


def test_the_next_write_removes_what_a_killed_process_left(leftover: Path) -> None:
    write_text(leftover.parent / "other.json", "{}")
    assert [path.name for path in leftover.parent.iterdir()] == ["other.json"]


@pytest.mark.parametrize(
    "name",
    [
        ".tmpAbCdEf",  # of some other program
        ".sora-elsewhere-1-0123456789abcdef.tmp",  # of another machine
        f".sora-{_files._HOST}-{os.getppid()}-0123456789abcdef.tmp",  # of a process that runs
        ".sora-mine.tmp",
    ],
)
def test_only_what_dead_processes_of_this_machine_left_is_removed(name: str, tmp_path: Path) -> None:
    reused = tmp_path / f".sora-{_files._HOST}-{os.getpid()}-0123456789abcdef.tmp"  # our number, not ours
    for folder in (tmp_path / name, reused):
        folder.mkdir()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_follow_the_umask(mask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_tensors(tmp_path / "a.safetensors", {"x": torch.zeros(2)}, {})
        write_text(tmp_path / "a.json", "{}")
        link(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("a.safetensors", "a.json", "b.safetensors"), mode)


def test_a_file_is_open_for_writing_when_it_is_synced_as_windows_requires(tmp_path, monkeypatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    modes = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: modes.append(fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE)
    )
    write_text(tmp_path / "a.txt", "text")
    link(tmp_path / "a.txt", tmp_path / "b.txt")
    assert modes == [os.O_RDWR, os.O_RDWR]
    assert (tmp_path / "b.txt").read_text() == "text"


def test_tensors_that_share_memory_are_written_under_both_names(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 2)
    tied = torch.nn.ModuleDict({"one": layer, "two": torch.nn.Sequential(layer)})
    write_tensors(tmp_path / "tied.safetensors", tied.state_dict(), {})
    found = load_file(tmp_path / "tied.safetensors")
    assert found.keys() == tied.state_dict().keys()
    assert torch.equal(found["one.weight"], found["two.0.weight"])


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", '{"a": Infinity}', "[" * 100_000])
def test_json_has_no_names_for_numbers_and_few_levels(text: str) -> None:
    assert _files.parse_json(b'{"a": [1.5, 1e308]}') == {"a": [1.5, 1e308]}
    with pytest.raises(ValueError, match=r"is not a number|nested too deeply"):
        _files.parse_json(text)


def test_names_in_markdown_are_not_html(tmp_path: Path) -> None:
    row = ["<script>alert(1)</script>", "a\n| b | 99 % |"]
    write_text(tmp_path / "a.md", markdown_table(["name", "value"], [row]))
    assert (tmp_path / "a.md").read_text().splitlines()[2:] == [
        r"| &lt;script>alert(1)&lt;/script> | a \| b \| 99 % \| |"
    ]


def test_without_hard_links_a_copy_takes_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_text("new")
    target.write_text("old")
    link(source, target)
    assert target.read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
