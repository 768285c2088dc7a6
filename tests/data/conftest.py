import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


class Server:
    """Files on 127.0.0.1, with Range requests, that can break off or misbehave."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut_after: int | None = None
        """Break the next answer off after so many bytes."""
        self.status: int | None = None
        """Answer everything with this."""
        self.ranges = True
        self.requests: list[str | None] = []
        self.url = ""

    def serve(self, name: str, content: bytes) -> str:
        self.files[f"/{name}"] = content
        return f"{self.url}/{name}"


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, server: Server, *args: object) -> None:
        self.world = server
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        world = self.world
        wanted = self.headers.get("Range")
        world.requests.append(wanted)
        content = world.files.get(self.path.split("?")[0])
        if content is None or world.status is not None:
            self.send_error(world.status or 404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and world.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = len(content)
        if world.cut_after is not None:
            end, world.cut_after = start + world.cut_after, None
        self.wfile.write(content[start:end])

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    world = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, world))  # type: ignore[arg-type]
    world.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield world
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def no_network_and_no_waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sora.data.obtain.PAUSE", 0.01)
    monkeypatch.setenv("SORA_DATA", str(tmp_path / "data"))
