"""Hostile files of every format: never executed, never without end, memory bounded, no traceback."""

import os
import random
import shutil

from tests.torture import comparing, configurations, hostile_arrays, hostile_images, hostile_runs
from tests.torture.bench import RUN_LIMIT, Bench, Outcome, check_end, last_line
from tests.torture.children import sora
from tests.torture.hostile import SCRIPT, Attack, Place

MEMORY = 4 << 30  # bytes beyond what the process has; the bench fails far below it
COUNT = 4  # files per case
ATTACKS = [
    *hostile_images.ATTACKS.items(),
    *((attack.__name__, attack) for attack in (*hostile_arrays.ATTACKS, *hostile_runs.ATTACKS)),
]


def case(bench: Bench, number: int) -> Outcome:
    """Some hostile files; successive cases go through all kinds."""
    outcome, rng = Outcome("files", number), bench.rng("files", number)
    finished = bench.reference(configurations.finished_run()).folder
    order = random.Random(bench.seed).sample(ATTACKS, len(ATTACKS))
    for i in range(COUNT):
        name, attack = order[(number * COUNT + i) % len(order)]
        _try(bench, outcome, name, attack, Place(bench.place(f"files-{number}-{i}"), finished, rng))
    return outcome


def _try(bench: Bench, outcome: Outcome, name: str, attack: Attack, place: Place) -> None:
    line = attack(place)
    if line is None:  # a format whose reader is not installed
        return
    outcome.inputs += 1
    before = _outside(place)
    ended = bench.child(sora(line), place.work, memory=MEMORY).end(RUN_LIMIT)
    what = f"{name} ({place.note}): sora {' '.join(map(repr, line))}"
    clean = check_end(outcome, ended, what)
    if SCRIPT in "".join(path.read_text(errors="replace") for path in place.work.rglob("*.[hm][td]*")):
        outcome.add("executed", f"{what}: {SCRIPT} in a page")
    elif clean and place.refuse and not ended.code:
        outcome.add("accepted", f"{what}: exit code 0")
    elif _outside(place) != before:
        changed = sorted(set(_outside(place).items()) ^ set(before.items()))
        outcome.add("executed", f"{what}: changed {', '.join({name for name, _ in changed})}")
    elif clean and ended.code and not ended.one_line:
        outcome.add("raw", f"{what}: not one line on stderr: {last_line(ended)}")
    elif clean:
        outcome.add("refused" if ended.code else "harmless")
        shutil.rmtree(place.folder, ignore_errors=True)


def _outside(place: Place) -> dict[str, tuple[int, int]]:
    """Everything beside the folder that the command works in."""
    state = comparing.tree_state(place.folder)
    return {name: facts for name, facts in state.items() if name.split(os.sep)[0] != "work"}
