"""Two processes that train together: one or both are killed, then all start again, as torchrun does."""

import contextlib
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.torture import comparing, configurations
from tests.torture.bench import RUN_LIMIT, Bench, Outcome, fill, last_line
from tests.torture.children import Child, Ended, python, sora

GRACE = 30.0  # seconds between SIGTERM and SIGKILL for the ranks that are left, as in torchrun
POOL = 6


def case(bench: Bench, outcome: Outcome, rng: random.Random, *, launcher: bool) -> None:
    """Kill and continue a run of two ranks, started by torchrun itself or as it would."""
    arguments = configurations.two_ranks(random.Random(f"{bench.seed} ranks {rng.randrange(POOL)}"))
    reference = bench.reference(arguments, run=partial(_together, bench))
    place = bench.place(f"kills-{outcome.case}")
    what = f"two ranks of sora {' '.join(arguments)}"
    command = fill([*arguments, "--resume", "auto"], place / "out")
    sent = []
    for attempt in range(rng.randint(1, 3)):
        moment, number = (
            rng.uniform(0, reference.seconds),
            rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)),
        )
        victims = [rng.randrange(2)] if number == signal.SIGKILL and rng.random() < 0.7 else [0, 1]
        sent.append(f"{number.name} to {' and '.join(map(str, victims))} after {moment:.2f} s")
        story = f"{what} ({'; '.join(sent)})"
        if launcher:
            if not _under_torchrun(bench, outcome, command, place, moment / 2, victims[0], story):
                return
            break
        children = start(bench, command, place, attempt)
        children[0].wait(moment)
        for victim in victims:
            children[victim].send(number)
        ended = finish(children)
        for each in ended:  # what the survivor says about the dead rank is torchrun's to report
            outcome.saw_memory(each.peak_mb, story)
        if all(each.code == 0 for each in ended):
            break
        outcome.add("killed")
    if not launcher:
        failed = [each for each in finish(start(bench, command, place, 9)) if each.code]
        if failed:
            outcome.add("different", f"{story}: cannot be continued: {last_line(failed[0])}")
            return
    if outcome.compare(story, comparing.run_differences(reference.folder, place / "out")):
        shutil.rmtree(place)


def start(bench: Bench, command: Sequence[str], place: Path, attempt: int) -> list[Child]:
    """Two ranks with the environment that torchrun gives them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    env["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
    numbers = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    return [bench.child(sora(command), place, f"rank{n['RANK']}", env | n) for n in numbers]


def finish(children: list[Child]) -> list[Ended]:
    """Wait for all; when one has failed, the others get SIGTERM and later SIGKILL."""
    deadline = time.monotonic() + RUN_LIMIT
    while time.monotonic() < deadline and not all(child.wait(0.05) for child in children):
        if any(child.has_failed() for child in children):
            break
    if not all(child.wait(5) for child in children):
        for child in children:
            child.send(signal.SIGTERM)
        for child in children:
            if not child.wait(GRACE):
                child.send(signal.SIGKILL)
    return [child.end(5) for child in children]


def _together(bench: Bench, command: Sequence[str], place: Path) -> list[Ended]:
    return finish(start(bench, command, place, 0))


def _under_torchrun(
    bench: Bench, outcome: Outcome, command: Sequence[str], place: Path, moment: float, victim: int, what: str
) -> bool:
    """One run by torchrun, which restarts all ranks when one is killed; whether it ended well."""
    torchrun = "-m torch.distributed.run --standalone --nproc-per-node=2 --max-restarts=3 -m sora"
    child = bench.child(python([*torchrun.split(), *command]), place, env={"OMP_NUM_THREADS": "1"})
    while not child.wait(0.05) and not (place / "out" / "config.yaml").exists():
        pass  # the ranks are still starting
    child.wait(moment)
    with contextlib.suppress(OSError, IndexError):  # they may have ended by now
        found = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        os.kill(int(found[victim]), signal.SIGKILL)
        outcome.add("killed")
    ended = child.end(RUN_LIMIT)
    outcome.saw_memory(ended.peak_mb, what)
    if ended.hung or ended.left_running:
        outcome.add("hung", f"{what} under torchrun")
    elif ended.code:
        outcome.add("different", f"{what} under torchrun: exit code {ended.code}: {last_line(ended)}")
    return not ended.hung and ended.code == 0
