"""What changes between two commands: data, caches, attacked images, networks, or a run that was extended."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.data import formats
from tests.torture import comparing, configurations
from tests.torture.bench import RUN_LIMIT, Bench, BrokenReference, Outcome, check_end, fill, last_line
from tests.torture.children import signal_before, sora
from tests.torture.flips import succeeded
from tests.torture.hostile import flip_bits
from tests.torture.hostile_runs import NAME

_SHORT = "--epochs 2 --batch-size 16 --attacks clean --holdout 0 --threads 1 --device cpu --quiet --guard off"
TRAIN = f"train {_SHORT} --width 4 --set model.stages=1 --schedule multistep --milestones= --dataset"
EVALUATE = "evaluate out --threads 1 --device cpu --data-dir home"
ATTACKED = f"{EVALUATE} --attacks clean,fgsm --card --json".split()
NAMES = ("ant", "bee", "cat")


def case(bench: Bench, number: int) -> Outcome:
    """One story; successive cases go through all of them."""
    outcome, rng = Outcome("changes", number, inputs=1), bench.rng("changes", number)
    place = bench.place(f"changes-{number}")
    STORIES[number % len(STORIES)](bench, outcome, rng, place)
    if not outcome.failures:
        shutil.rmtree(place)
    return outcome


def train(bench: Bench, place: Path, dataset: str, out: str = "out", home: str = "home") -> int:
    """Train on the same images, from an archive or from folders of pictures in this place."""
    images, labels = formats.noise(48, 8, 8, 1), np.arange(48) % 3
    sets = {"x_train": images, "y_train": labels, "x_test": images[::-1], "y_test": labels[::-1]}
    if not (place / "data.npz").exists():
        np.savez(place / "data.npz", classes=np.array(NAMES), **sets)
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            folder = place / "pictures" / NAMES[label]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{i}.bmp").write_bytes(formats.png(image, "BMP"))
    ended = bench.run([*TRAIN.split(), dataset, "--out", out, "--data-dir", home], place)
    if ended.code and out != "again":
        raise BrokenReference(f"training on {dataset}: {last_line(ended)}")
    return ended.code


def changed_data(bench: Bench, outcome: Outcome, rng: random.Random, place: Path) -> None:
    """Other class names are refused; other images or labels are announced in all that is written."""
    change = rng.choice(list(CHANGES))
    train(bench, place, "npz:data.npz" if "npz" in change else "folder:pictures")
    CHANGES[change](place)
    ended, what = bench.run(ATTACKED, place), f"sora {' '.join(ATTACKED)} after {change}"
    if succeeded(outcome, ended, what):
        card = "".join(re.findall("(?i).*warning.*", (place / "out" / "model_card.md").read_text()))
        warnings = str([record.get("warnings") for record in json.loads(ended.out)])
        texts = {"JSON": warnings, "card": card, "table": bench.run(ATTACKED[:-1], place).out}
        silent = [name for name, text in texts.items() if "names" in change or "changed" not in text]
        outcome.compare(f"{what}, no word in", silent)


def arrays(path: Path) -> dict[str, Any]:
    """All arrays of an archive."""
    with np.load(path) as file:
        return dict(file)


def write_npz(place: Path, **changes: Any) -> None:
    """Replace some arrays of the data."""
    np.savez(place / "data.npz", **(arrays(place / "data.npz") | changes))


def edit_pictures(place: Path) -> None:
    """Other pixels, the same size and time."""
    for path in (place / "pictures").rglob("*.bmp"):
        before, content = path.stat(), path.read_bytes()
        path.write_bytes(content[:-64] + bytes(255 - byte for byte in content[-64:]))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "npz with other labels": lambda place: write_npz(place, y_test=np.arange(48) // 16),
    "npz with other images": lambda place: write_npz(place, x_test=formats.noise(48, 8, 8, 1, seed=7)),
    "npz with other names": lambda place: write_npz(place, classes=np.array(NAMES[::-1])),
    "folder with other names": lambda place: (place / "pictures" / "ant").rename(place / "pictures" / "dog"),
    "folder with other pictures": edit_pictures,
}


def damaged_cache(bench: Bench, outcome: Outcome, rng: random.Random, place: Path) -> None:
    """A bit of packed images flips, or a picture is edited: as with a new cache, or refused."""
    train(bench, place, "folder:pictures")
    what = "pictures edited with size and time kept"
    if rng.random() < 0.3:
        edit_pictures(place)
    else:
        path = rng.choice(sorted((place / "home").rglob("*.npy")))
        content, what = path.read_bytes(), f"flipped bits in the cache, {path.name}"
        path.chmod(0o600)
        path.write_bytes(content[:128] + flip_bits(content[128:], rng.choice([1, 8]), rng))
    train(bench, place, "folder:pictures", "new", "fresh")
    checked = bench.run(["data", "check", "folder:pictures", "--data-dir", "home"], place)
    if rng.random() < 0.5:
        if succeeded(outcome, checked, what):
            outcome.compare(what, comparing.store_differences(place / "fresh", place / "home"))
    elif train(bench, place, "folder:pictures", "again"):
        outcome.add("refused")
    else:
        outcome.compare(what, comparing.run_differences(place / "new", place / "again"))


def attacked_images(bench: Bench, outcome: Outcome, rng: random.Random, place: Path) -> None:
    """A file for `--adversarial` that counts images twice, brings its own box, or borrows a name."""
    train(bench, place, "npz:data.npz")
    bench.run([*ATTACKED, "--save-adversarial", "adv.npz"], place)
    whole = arrays(place / "adv.npz")
    about = json.loads(str(whole.pop("about")))
    kind = rng.choice(["repeated", "too many", "box", "aa", NAME])
    if kind == "box":
        about["threat"] |= {"box": [-9, 9], "eps": 0.9, "given": "0.9"}
        whole["adversarial_fgsm"] = whole["adversarial_fgsm"] - 0.5
    elif kind in ("aa", NAME):
        whole[f"adversarial_{kind}"] = whole.pop("adversarial_fgsm")
        about["attacks"][kind] = about["attacks"].pop("fgsm")
    else:
        order = np.zeros(48, int) if kind == "repeated" else np.arange(480) % 48
        whole = {name: array[order] for name, array in whole.items()}
    np.savez(place / "adv.npz", about=np.array(json.dumps(about)), **whole)
    ended = bench.run([*EVALUATE.split(), "--adversarial", "adv.npz"], place)
    if succeeded(outcome, ended, f"attacked images, {kind!r}"):
        marked = kind in ("aa", NAME) and "file:" in ended.out
        outcome.add(*["harmless"] if marked else ["accepted", f"attacked images, {kind!r}"])


NETWORK = """
from torch import nn
def make(num_classes=10, **_):
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, num_classes))
"""


def other_network(bench: Bench, outcome: Outcome, rng: random.Random, place: Path) -> None:
    """The code of a run's network is edited before the run continues, by `sora train` or by `fit`."""
    file, summary, verb = place / "mynet.py", place / "out" / "summary.json", rng.choice(["fit", "train"])

    def fit() -> int:
        import sora as package

        names: dict[str, Any] = {}
        exec(file.read_text(), names)
        with contextlib.suppress(ValueError):  # a refusal
            package.fit(
                names["make"](), "digits", out="out", resume=True, quiet=True, epochs=2, limit_train=64
            )
        return 0

    line = f"train --limit-train 64 --limit-test 10 {_SHORT} --model mynet:make --resume auto --out out"
    function = fit if verb == "fit" else sora(line.split())
    file.write_text(NETWORK)
    child = bench.child(function, place)
    while not list(place.glob("out/checkpoints/step*")) and not child.wait(0.005):
        pass
    child.send(signal.SIGKILL)
    child.end(RUN_LIMIT)
    if summary.exists():
        return  # it was faster than the signal
    file.write_text(NETWORK.replace("ReLU", "Tanh"))
    shutil.rmtree(place / "__pycache__", ignore_errors=True)
    if check_end(outcome, bench.child(function, place).end(RUN_LIMIT), f"{verb} with another network"):
        accepted = ["accepted", f"{verb} continued a run with another network"]
        outcome.add(*accepted if summary.exists() else ["refused"])


def killed_extension(bench: Bench, outcome: Outcome, rng: random.Random, place: Path) -> None:
    """A finished run is extended and killed; `evaluate --card` says which weights it measures."""
    train(bench, place, "npz:data.npz")
    before, change = (place / "out" / "config.yaml").read_bytes(), rng.randrange(4, 60)
    extend = sora("train --resume --out out --epochs 400 --quiet".split())  # noqa: SIM905
    bench.child(signal_before(signal.SIGKILL, change, extend), place).end(RUN_LIMIT)
    outcome.add("killed")
    ended, what = bench.run(ATTACKED, place), f"an extension killed before change {change}"
    if succeeded(outcome, ended, what):
        silent = before != (place / "out" / "config.yaml").read_bytes() and "unfinished" not in ended.err
        title = (place / "out" / "model_card.md").read_text().splitlines()[0]
        outcome.compare(what, ["no word about it"] * silent + [title] * ("None" in title))


def ignored_interrupt(bench: Bench, outcome: Outcome, rng: random.Random, place: Path) -> None:
    """A comparison in a script's background, where Ctrl-C is ignored: all of it goes on, or stops."""
    arguments = configurations.comparison(random.Random(f"{bench.seed} ignored"))
    reference = bench.reference(arguments)

    def run() -> int:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return sora(fill(arguments, place / "out"))()

    child = bench.child(run, place)
    if not child.wait(rng.uniform(0, reference.seconds)):
        os.killpg(child.pid, signal.SIGINT)
    ended, what = child.end(RUN_LIMIT), "a comparison that ignores SIGINT"
    if check_end(outcome, ended, what, (0, 130)) and ended.code == 0:
        outcome.compare(what, comparing.comparison_differences(reference.folder, place / "out"))


STORIES: list[Callable[[Bench, Outcome, random.Random, Path], None]] = [
    *(changed_data, damaged_cache, attacked_images, other_network, killed_extension),
    *(changed_data, damaged_cache, attacked_images, changed_data, ignored_interrupt),
]
