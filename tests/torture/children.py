"""Child processes that can be killed cheaply, at random times or exact moments.

They are forked from a process that has torch and sora imported: a fork costs milliseconds where a new
interpreter needs seconds. It is safe because the parent has one thread: torch on one CPU thread starts no
others, which `warm_up` verifies. Python announces each change to the file system to audit hooks (PEP 578)
before it happens, so a process can be killed between any two of them, e.g. between a rename and the link that
follows, without touching the code under test.
"""

import contextlib
import ctypes
import importlib
import itertools
import os
import pkgutil
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.torture import configurations

CRASHED = 70  # exit code of a child whose function raised
PATIENCE = 60.0  # seconds that other processes of a child may take to end after it
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    code: int
    """Exit code; a negative number is the signal that ended it."""
    out: str
    err: str
    seconds: float
    peak_mb: float
    hung: bool = False
    left_running: bool = False
    """Whether processes it had started outlived it."""

    @property
    def one_line(self) -> bool:
        """Whether its errors are one line of the command line's form, besides warnings."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        errors = [line for line in lines if not line.startswith("sora: warning: ")]
        return len(errors) == 1 and errors[0].startswith("sora: ")


class Child:
    """A forked process in a session of its own that calls a function, whose result is its exit code.

    Its output goes to files in a folder outside of `cwd`; `memory` limits the bytes of address space beyond
    what it has now.
    """

    def __init__(
        self,
        function: Callable[[], int],
        cwd: Path,
        output: Path,
        env: Mapping[str, str] | None = None,
        memory: int | None = None,
    ) -> None:
        cwd.mkdir(parents=True, exist_ok=True)
        output.mkdir(parents=True, exist_ok=True)
        self._output, self._began = output, time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become(function, cwd, output, dict(env or {}), memory)
        self._handle = os.pidfd_open(self.pid)

    def wait(self, seconds: float) -> bool:
        """Wait at most so long; whether it has ended."""
        return bool(select.select([self._handle], [], [], max(0.0, seconds))[0])

    def has_failed(self) -> bool:
        """Whether it has ended in any other way than with exit code 0."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return found is not None and found.si_status != 0

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if not self.wait(0):
            os.kill(self.pid, number)

    def end(self, limit: float) -> Ended:
        """Wait for its end; after `limit` seconds it is killed and counts as hung."""
        hung = not self.wait(limit)
        if hung:
            os.killpg(self.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        os.close(self._handle)
        out, err = ((self._output / name).read_text(errors="replace") for name in ("out", "err"))
        seconds = time.monotonic() - self._began
        left = _end_group(self.pid)
        code = os.waitstatus_to_exitcode(status)
        return Ended(code, out, err, seconds, usage.ru_maxrss / 1024, hung, left)


def _end_group(group: int) -> bool:
    """Wait until the group of a child is empty; if it does not end by itself, kill it and return true."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if not _alive(group):
            return False
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    return True


def _alive(group: int) -> bool:
    """Whether a process group has members other than zombies."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            state, _, member = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(member) == group and state not in "ZX":
                return True
    return False


def _become(
    function: Callable[[], int], cwd: Path, output: Path, env: dict[str, str], memory: int | None
) -> None:
    """Everything the child does; it never returns."""
    code = CRASHED
    try:
        os.setsid()
        end_with_parent()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for name, descriptor in (("out", 1), ("err", 2)):
            file = os.open(output / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, descriptor)
            os.close(file)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (open(fd, "w", closefd=False) for fd in (1, 2))  # noqa: SIM115
        os.environ.update(env)
        os.chdir(cwd)
        if memory is not None:
            limit = address_space() + memory
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        # Python's own handler only now: until here a signal would raise inside the bench.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = function()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def end_with_parent() -> None:
    """Have the system end this process when its parent ends."""
    _libc.prctl(_PARENT_DEATH, signal.SIGKILL)


def address_space() -> int:
    """Bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def sora(arguments: Sequence[str], *, cold: bool = False) -> Callable[[], int]:
    """The command line in the forked process itself, or with a `cold` start in a new interpreter."""

    def run() -> int:
        from sora.cli import main

        return main(list(arguments))

    return python(["-m", "sora", *arguments]) if cold else run


def python(arguments: Sequence[str]) -> Callable[[], int]:
    """A new interpreter in place of the forked process, e.g. for `-m sora train ...`."""
    return lambda: os.execv(sys.executable, [sys.executable, *arguments])


def warm_up(scratch: Path) -> None:
    """Import everything and train once, so that what is forked from here starts at once."""
    import torch

    torch.set_num_threads(1)
    import sora.cli

    for module in pkgutil.iter_modules(sora.cli.__path__, "sora.cli."):
        importlib.import_module(module.name)
    code = sora.cli.main(
        ["train", *configurations.SMALLEST, "--attacks", "clean,fgsm", "--out", str(scratch / "warm-up")]
    )
    threads = len(os.listdir("/proc/self/task"))
    if code or threads != 1:
        raise RuntimeError(f"warm-up failed: exit code {code}, {threads} threads; expected 0 and 1")


CHANGES = (
    "os.rename", "os.link", "os.symlink", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.utime",
    "fcntl.flock", "fcntl.lockf", "shutil.rmtree", "shutil.copyfile", "shutil.move", "tempfile.mkstemp",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def is_change(event: str, args: tuple[object, ...]) -> bool:
    """Whether an audit event announces a change to the file system."""
    if event == "open":
        flags = args[2]
        return isinstance(flags, int) and bool(flags & _WRITING) and not str(args[0]).startswith("/dev/")
    return event in CHANGES


def signal_before(number: int, change: int, function: Callable[[], int]) -> Callable[[], int]:
    """`function`, but this process gets signal `number` before its change `change` (counted from 0)."""
    changes = itertools.count()

    def send(_: str) -> None:
        if next(changes) == change:
            os.kill(os.getpid(), number)

    return _watched(function, send)


def recording(function: Callable[[], int], log: Path) -> Callable[[], int]:
    """`function`, which also writes the kinds of all its changes to `log`, one per line."""
    kinds: list[str] = []

    def run() -> int:
        code = _watched(function, kinds.append)()
        log.write_text("\n".join(kinds))
        return code

    return run


def _watched(function: Callable[[], int], on_change: Callable[[str], None]) -> Callable[[], int]:
    """`function`, with `on_change` called before each of its changes; the hook stays in the process."""

    def hook(event: str, args: tuple[object, ...]) -> None:
        if is_change(event, args):
            on_change(event)

    def run() -> int:
        sys.addaudithook(hook)
        return function()

    return run
