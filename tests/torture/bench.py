"""What all parts share: what they count, a scratch folder, random numbers, and undisturbed results."""

import hashlib
import json
import random
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture.children import CRASHED, Child, Ended, recording, sora

COUNTS = ("killed", "identical", "refused", "harmless", "different", "accepted", "raw", "executed", "hung")
MUST_BE_ZERO = ("different", "accepted", "raw", "executed", "hung")
MEMORY_LIMIT_MB = 1536
RUN_LIMIT = 240.0  # seconds; a tiny run takes two on an idle machine
_EXCEPTION = re.compile(r"^sora: (?:[a-z_]+\.)*[A-Z]\w*(?:Error|Exception|Warning|Interrupt|Exit)\b(?::|$)")

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


@dataclass
class Outcome:
    """What one case found."""

    part: str
    case: int
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    inputs: int = 0
    """Bad command lines, calls, damaged or hostile files tried."""
    seconds: float = 0.0
    peak_mb: float = 0.0

    def add(self, what: str, failure: str = "") -> None:
        """Count one event; a failure also says what happened."""
        assert what in COUNTS
        self.counts[what] = self.counts.get(what, 0) + 1
        if failure:
            self.failures.append(f"{what}: {failure}")

    def compare(self, what: str, differences: Sequence[str]) -> bool:
        """Count a result by how it differs from that of an undisturbed command; whether it does not."""
        if differences:
            self.add("different", f"{what}: {', '.join(differences)}")
        else:
            self.add("identical")
        return not differences

    def saw_memory(self, megabytes: float, what: str) -> None:
        """Record a child's peak; above the limit it is a failure."""
        self.peak_mb = max(self.peak_mb, megabytes)
        if megabytes > MEMORY_LIMIT_MB:
            self.failures.append(f"memory: {megabytes:.0f} MB by {what}")


@dataclass(frozen=True)
class Reference:
    """The result of an undisturbed command."""

    folder: Path
    seconds: float
    changes: tuple[str, ...]
    """Its changes to the file system, by kind and in order."""
    out: str
    err: str


class Bench:
    """One worker's view of the bench; a case is determined by its part, its number and the seed."""

    def __init__(self, scratch: Path, seed: int) -> None:
        self.scratch, self.seed = scratch, seed
        self._output = scratch / "output"

    def rng(self, part: str, case: int) -> random.Random:
        """The random numbers of a case."""
        return random.Random(f"{self.seed} {part} {case}")

    def place(self, name: str) -> Path:
        """An empty folder for a case."""
        path = self.scratch / "cases" / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def child(
        self,
        function: Callable[[], int],
        cwd: Path,
        output: str = "0",
        env: dict[str, str] | None = None,
        memory: int | None = None,
    ) -> Child:
        """Start a child; several at once need different `output` names."""
        here = {"HOME": str(self.scratch / "home"), "SORA_DATA": str(self.scratch / "data"), **(env or {})}
        return Child(function, cwd, self._output / output, here, memory)

    def run(self, arguments: Sequence[str], cwd: Path, *, cold: bool = False) -> Ended:
        """Run the command line to its end."""
        return self.child(sora(arguments, cold=cold), cwd).end(RUN_LIMIT)

    def reference(
        self,
        arguments: Sequence[str],
        prepare: Callable[[Path], None] | None = None,
        run: Callable[[list[str], Path], list[Ended]] | None = None,
    ) -> Reference:
        """The result of a command in a folder of its own, computed once; `OUT` is where the result goes.

        `prepare` fills the folder beforehand. `run` runs the command; by default one child does, whose
        changes to the file system are recorded.
        """
        key = hashlib.sha256(f"{bool(run)} {' '.join(arguments)}".encode()).hexdigest()[:16]
        folder, facts = self.scratch / "references" / key, self.scratch / "references" / f"{key}.json"
        if not facts.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            if prepare is not None:
                prepare(folder / "out")
            log, command = folder.with_suffix(".log"), fill(arguments, folder / "out")
            child = recording(sora(command), log)
            ended = run(command, folder) if run else [self.child(child, folder).end(RUN_LIMIT)]
            if any(each.code for each in ended):
                errors = "; ".join(last_line(each) for each in ended)
                raise BrokenReference(f"sora {' '.join(arguments)}: {errors}")
            changes = log.read_text().split() if log.exists() else []
            seconds = max(each.seconds for each in ended)
            facts.write_text(json.dumps([seconds, changes, ended[0].out, ended[0].err]))
        seconds, changes, out, err = json.loads(facts.read_text())
        return Reference(folder / "out", seconds, tuple(changes), out, err)


class BrokenReference(Exception):
    """A command that must work failed without any disturbance."""


def fill(arguments: Sequence[str], out: Path) -> list[str]:
    """The command with its folder put in."""
    return [argument.replace("OUT", str(out)) for argument in arguments]


def check_end(outcome: Outcome, ended: Ended, what: str, allowed: Sequence[int] = (0, 1, 2)) -> bool:
    """Count what no ending may show: hangs, tracebacks, unexpected exceptions; whether it was clean."""
    outcome.saw_memory(ended.peak_mb, what)
    before = len(outcome.failures)
    if ended.hung:
        outcome.add("hung", f"{what}: no end after {ended.seconds:.0f} s")
    elif ended.left_running:
        outcome.add("hung", f"{what}: processes it had started were left running")
    elif shown := _CONTROL.findall(ended.out + ended.err):
        outcome.add("raw", f"{what}: {''.join(shown)!r} on the terminal")
    elif is_raw(ended) or ended.code not in allowed:
        outcome.add("raw", f"{what}: exit code {ended.code}: {last_line(ended)}")
    return len(outcome.failures) == before


def is_raw(ended: Ended) -> bool:
    """Whether an exception shows that was not meant for users."""
    lines = ended.err.splitlines()
    crashed = ended.code in (CRASHED, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE)
    return crashed or "Traceback (most" in ended.err or any(map(_EXCEPTION.match, lines))


def last_line(ended: Ended) -> str:
    """The last line of the errors, shortened."""
    lines = [line for line in ended.err.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "(nothing on stderr)"
