"""Flipped bits and cut files in run folders: the result stays what it was, or one line refuses."""

import json
import random
import shutil
import signal
from pathlib import Path

from tests.torture import comparing, configurations
from tests.torture.bench import RUN_LIMIT, Bench, Outcome, check_end, fill, last_line
from tests.torture.children import Ended, signal_before, sora


def case(bench: Bench, number: int) -> Outcome:
    """Damage one file of a run folder, use the folder, and see what comes of it."""
    outcome, rng = Outcome("flips", number, inputs=1), bench.rng("flips", number)
    [use] = rng.choices(list(USES), list(USES.values()))
    place = bench.place(f"flips-{number}")
    use(bench, outcome, rng, place / "out")
    if not outcome.failures:
        shutil.rmtree(place)
    return outcome


def damage(folder: Path, rng: random.Random) -> tuple[str, str]:
    """Flip bits of a random file or cut it; return its name, and what was done in words.

    Files of all kinds are equally likely.
    """
    kinds: dict[str, list[Path]] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size):
        relative = path.relative_to(folder)
        if "tmp" in relative.name:
            continue
        stem = relative.stem.split("-")[0]
        kinds.setdefault(f"{relative.parent}/{stem}{relative.suffix}", []).append(path)
    path = rng.choice(kinds[rng.choice(sorted(kinds))])
    content = bytearray(path.read_bytes())
    path.unlink()  # a hard link may give the same bytes two names; only one of them is damaged
    name = path.relative_to(folder)
    if rng.random() < 0.2:
        size = rng.randrange(len(content))
        path.write_bytes(content[:size])
        return str(name), f"{name} cut from {len(content)} to {size} bytes"
    flips = 1 if rng.random() < 0.8 else 8
    limit = len(content)
    if path.suffix == ".safetensors" and rng.random() < 0.4:  # the header is small beside the tensors
        limit = min(limit, 8 + int.from_bytes(content[:8], "little"))
    bits = [(rng.randrange(limit), rng.randrange(8)) for _ in range(flips)]
    for at, bit in bits:
        content[at] ^= 1 << bit
    path.write_bytes(content)
    return str(name), f"{name} with flipped bits at {', '.join(f'{at}.{bit}' for at, bit in bits)}"


def _resume(bench: Bench, outcome: Outcome, rng: random.Random, run: Path) -> None:
    """Damage an interrupted run and continue it."""
    arguments = configurations.finished_run(rng.randrange(2))
    reference = bench.reference(arguments)
    change = rng.choice([i for i, kind in enumerate(reference.changes) if kind == "os.rename"][2:-1])
    killed = reference.folder.with_name(f"killed-{change}")
    if not killed.exists():
        command = signal_before(signal.SIGKILL, change, sora(fill(arguments, killed)))
        bench.child(command, killed.parent).end(RUN_LIMIT)
    shutil.copytree(killed, run)
    name, did = damage(run, rng)
    what = f"continuing a run killed before change {change}, {did}"
    if succeeded(outcome, bench.run(fill([*arguments, "--resume", "auto"], run), run.parent), what):
        differences = comparing.run_differences(reference.folder, run)
        if name.startswith(("checkpoints/", "snapshots/")):  # not read, so it stays as it is
            differences = [each for each in differences if each != name]
        outcome.compare(what, differences)


def succeeded(outcome: Outcome, ended: Ended, what: str) -> bool:
    """Whether a command has a result to judge; a refusal and anything worse is counted."""
    if not check_end(outcome, ended, what):
        return False
    if ended.code:
        outcome.add("refused") if ended.one_line else outcome.add("raw", f"{what}: {last_line(ended)}")
    return not ended.code


def _load(bench: Bench, outcome: Outcome, rng: random.Random, run: Path) -> None:
    """Damage a finished run and load its model in Python."""
    finished = bench.reference(configurations.finished_run()).folder
    shutil.copytree(finished, run)
    what = f"sora.load(RUN), {damage(run, rng)[1]}"

    def outputs(folder: Path) -> int:
        import torch

        import sora as package
        from sora.errors import RunError

        try:
            model = package.load(folder)
        except (ValueError, TypeError, RunError) as error:
            print(f"{type(error).__name__}: {error}")
            return 2
        with torch.no_grad():
            rows = model(torch.linspace(0, 1, 4 * 256).reshape(4, 1, 16, 16))
        print(json.dumps(rows.tolist()))
        return 0

    whole, ended = (bench.child(lambda f=f: outputs(f), run.parent).end(RUN_LIMIT) for f in (finished, run))
    if check_end(outcome, ended, what):
        if ended.code:
            outcome.add("refused")
        else:
            outcome.compare(what, [] if ended.out == whole.out else ["the model's outputs"])


USES = {_resume: 85, _load: 15}
"""Ways to use a damaged run, with their shares."""
