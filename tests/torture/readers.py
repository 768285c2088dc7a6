"""Flipped bits before every verb that reads a run: what it prints and draws stays, or a line says why not."""

import re
import shutil
from functools import partial
from pathlib import Path

from tests.data import formats
from tests.torture import configurations
from tests.torture.bench import Bench, Outcome, fill
from tests.torture.flips import damage, succeeded

_HERE = "--threads 1 --device cpu --json"
VERBS = (
    f"evaluate OUT --attacks clean,fgsm {_HERE}",
    f"evaluate OUT --attacks clean,fgsm,pgd2 --eps 0.05 --card --per-class {_HERE}",
    f"predict OUT image.png --attack pgd2 {_HERE}",
    f"probe eps-curve OUT --limit 4 {_HERE}",
    f"probe eps-curve OUT --at 6 --limit 4 {_HERE}",
    "probe traces OUT --json",
    "probe training OUT --json",
    "compare OUT --json",
    "compare OUT --out table",
    "report OUT",
    "data show --run OUT --out x.png",
)
_NUMBER = re.compile(r"[\w.+-]*\d[\w.+-]*")
# What a page says of damage, and its embedded pictures: without a damaged file they have a panel less.
_NOTE = re.compile(r"cannot be shown[^<]*|It has logged[^<]*|\([\d.]+ MB\)|;base64,[\w+/=]+")


def case(bench: Bench, number: int) -> Outcome:
    """Damage one file of an evaluated run; successive cases go through all verbs."""
    outcome, rng = Outcome("readers", number, inputs=1), bench.rng("readers", number)
    arguments, place = VERBS[number % len(VERBS)].split(), bench.place(f"readers-{number}")
    finished = bench.reference(configurations.finished_run()).folder
    evaluated = bench.reference(VERBS[1].split(), partial(prepare, finished)).folder
    reference = bench.reference(arguments, partial(prepare, evaluated))
    prepare(evaluated, place / "out")
    what = f"sora {' '.join(arguments)}, {damage(place / 'out', rng)[1]}"
    ended = bench.run(fill(arguments, place / "out"), place)
    if not succeeded(outcome, ended, what):
        return outcome
    whole, found = products(reference.folder, reference.out), products(place / "out", ended.out)
    changed = [name for name in whole if found.get(name) != whole[name]]
    said = set(_NUMBER.findall(ended.err))
    new = set(_numbers(found)) - set(_numbers(whole)) - said if changed else set()
    if changed and (new or ended.err == reference.err):
        outcome.add("different", f"{what}: {', '.join(changed)}: {sorted(new)[:5]}, {ended.err[-200:]!r}")
    else:
        outcome.add("refused" if changed else "identical")
        shutil.rmtree(place)
    return outcome


def prepare(run: Path, out: Path) -> None:
    """Copy a run without its cards, which nothing reads, and put a picture beside it."""
    shutil.copytree(run, out, ignore=shutil.ignore_patterns("model_card.*"))
    (out.parent / "image.png").write_bytes(formats.png(formats.noise(1, 16, 16, 1)[0]))


def products(run: Path, printed: str) -> dict[str, str]:
    """What a command has printed, and written beside the run; its cards too."""
    files = [*run.parent.glob("*.*"), *run.parent.glob("table/*"), *run.glob("model_card.*")]
    texts = {path.name: path.read_bytes().decode("latin-1") for path in files}
    return {name: text.replace(str(run.parent), "") for name, text in {"output": printed, **texts}.items()}


def _numbers(products: dict[str, str]) -> list[str]:
    """Every word with a digit, pictures and notes apart."""
    texts = " ".join(text for name, text in products.items() if not name.endswith(".png"))
    return _NUMBER.findall(_NOTE.sub("", texts))
