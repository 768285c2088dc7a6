"""Real commands, killed at random moments and continued until they are done: nothing may differ."""

import random
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.torture import comparing, configurations, hostile, ranks
from tests.torture.bench import RUN_LIMIT, Bench, Outcome, Reference, check_end, fill, last_line
from tests.torture.children import Child, signal_before, sora

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
POLITE = (0, 130, 143, -signal.SIGINT, -signal.SIGTERM)
POOL = 60  # different runs per seed: each needs a reference, which costs as much as three kills
KINDS = {"train": 60, "cold train": 4, "evaluate": 12, "pack": 12, "ranks": 8, "compare": 3, "torchrun": 1}

Differences = Callable[[Path, Path], list[str]]


@dataclass(frozen=True)
class Kill:
    """One disturbance: a signal before a change to the file system, or after some time."""

    number: int
    change: int | None = None
    kind: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        name = signal.Signals(self.number).name
        if self.change is None:
            return f"{name} after {self.seconds:.2f} s"
        return f"{name} before change {self.change} ({self.kind})"


def draw(rng: random.Random, reference: Reference, *, timed: bool = False) -> Kill:
    """A random kill; links, renames and removals are more likely than their share."""
    number = rng.choice(SIGNALS)
    if timed or not reference.changes or rng.random() < 0.4:
        return Kill(number, seconds=rng.uniform(0, reference.seconds))
    rare = ("os.link", "os.rename", "os.remove", "os.rmdir")
    weights = [3.0 if kind in rare else 1.0 for kind in reference.changes]
    [change] = rng.choices(range(len(weights)), weights)
    return Kill(number, change, reference.changes[change])


def case(bench: Bench, number: int) -> Outcome:
    """One command, killed several times."""
    outcome, rng = Outcome("kills", number), bench.rng("kills", number)
    [kind] = rng.choices(list(KINDS), list(KINDS.values()))

    def draw_from(pool: int, make: Callable[[random.Random], list[str]]) -> list[str]:
        """One of few commands, so that references are used several times."""
        return make(random.Random(f"{bench.seed} {kind} {rng.randrange(pool)}"))

    again = ("--resume", "auto")
    if kind in ("train", "cold train"):
        arguments = draw_from(POOL, configurations.training)
        compare = comparing.run_differences
        kill_until_done(bench, outcome, rng, arguments, compare, again=again, cold=kind == "cold train")
    elif kind == "compare":
        arguments = draw_from(3, configurations.comparison)
        compare = comparing.comparison_differences
        kill_until_done(bench, outcome, rng, arguments, compare, again=again, timed=True)
    elif kind == "evaluate":
        arguments = draw_from(8, configurations.evaluation)
        finished = bench.reference(configurations.finished_run()).folder
        compare, prepare = comparing.evaluation_differences, partial(shutil.copytree, finished)
        kill_until_done(bench, outcome, rng, arguments, compare, prepare)
    elif kind == "pack":
        arguments, prepare = hostile.packing(bench.scratch / "originals", rng)
        kill_until_done(bench, outcome, rng, arguments, comparing.store_differences, prepare)
    else:
        ranks.case(bench, outcome, rng, launcher=kind == "torchrun")
    return outcome


def kill_until_done(
    bench: Bench,
    outcome: Outcome,
    rng: random.Random,
    arguments: Sequence[str],
    differences: Differences,
    prepare: Callable[[Path], None] | None = None,
    *,
    again: Sequence[str] = (),
    cold: bool = False,
    timed: bool = False,
) -> None:
    """Start a command, kill it, continue it, kill it again, let it finish, and compare.

    `prepare` fills the folder beforehand; the flags `again` let the command start or continue. With `cold`
    each process is a new interpreter, as for a user; with `timed` kills are by time only, because other
    processes do the work.
    """
    reference = bench.reference(arguments, prepare)
    place = bench.place(f"kills-{outcome.case}")
    if prepare is not None:
        prepare(place / "out")
    command = fill([*arguments, *again], place / "out")
    kills = [draw(rng, reference, timed=timed or cold) for _ in range(rng.randint(2, 6))]
    if cold:  # starting the interpreter takes some seconds
        kills = [Kill(k.number, seconds=k.seconds + rng.uniform(0, 4)) for k in kills[:3]]
    sent: list[Kill] = []
    what = f"sora {' '.join([*arguments, *again])}"
    for kill in kills:
        ended = _start(bench, command, place, kill, cold).end(RUN_LIMIT)
        sent.append(kill)
        killed = ended.code in (-kill.number, 128 + kill.number)
        if killed:
            outcome.add("killed")
        if not check_end(outcome, ended, f"{what} ({_listed(sent)})", (*POLITE, -signal.SIGKILL)):
            return
        if not killed:
            break  # it was faster than the signal
    ended = bench.run(command, place, cold=cold)
    story = f"{what} ({_listed(sent)})"
    if not check_end(outcome, ended, story):
        return
    if ended.code:
        outcome.add("different", f"{story}: cannot be continued: {last_line(ended)}")
        return
    if outcome.compare(story, differences(reference.folder, place / "out")):
        shutil.rmtree(place)


def _start(bench: Bench, command: list[str], place: Path, kill: Kill, cold: bool) -> Child:
    function = sora(command, cold=cold)
    if kill.change is not None:
        return bench.child(signal_before(kill.number, kill.change, function), place)
    child = bench.child(function, place)
    child.wait(kill.seconds)
    child.send(kill.number)
    return child


def _listed(kills: Sequence[Kill]) -> str:
    return "; ".join(map(str, kills))
