"""The runs of the corpus as data, and a resumable runner: one compressed CSV file per finished run.

    python benchmarks/alarm/runs.py --work /tmp/alarm --jobs 2      # train what is missing
    python benchmarks/alarm/corpus.py --work /tmp/alarm             # join the files

Each run records PertAlign, linearity, loss and training accuracy of every step, and every `EVERY` steps on
the same held-out images: accuracy under FGSM and PGD-10, and PertAlign and AltPertAlign of the first few of
them, in evaluation mode. The list is in a fixed random order within each seed, so that a corpus that was
stopped early is a fair sample of the whole one.
"""

import argparse
import csv
import gzip
import multiprocessing
import os
import random
import re
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from networks import convnet
from torch import Tensor, nn

from sora import methods, training
from sora.data import stratified
from sora.errors import RunError
from sora.metrics import measure
from sora.settings import Request
from sora.threat import Threat
from sora.training import Hook
from sora.training.run import Run

KEYS = ("method", "setting", "seed")
COLUMNS = ("step", "pert_align", "linearity", "loss", "accuracy", "fgsm", "pgd", "look", "alt")
EVERY, IMAGES, FEW = 5, 64, 16
SEEDS = 3
DIGITS = 3  # after the decimal point
FREE_EPOCHS = 5  # each batch is replayed eight times

WITH_PERT_ALIGN = (
    *("fgsm", "fgsm-rs", "n-fgsm", "zerograd", "multigrad", "atas", "aaer", "elle", "gradalign"),
    *("fgsm-ckpt", "free", "sora", "pgd-2", "pgd-10"),
)
WITHOUT = ("benign", "nuat", "trades")
CHEAP = ("fgsm", "fgsm-rs", "n-fgsm", "zerograd", "atas", "fgsm-ckpt", "sora", "pgd-2")


@dataclass(frozen=True)
class Spec:
    """One run: where it stands in the study, and the settings that differ from the recipe of digits."""

    method: str
    setting: str
    """The name of the setting, the same for all methods and seeds."""
    seed: int
    network: str
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the run and of its file."""
        return f"{self.method}-{self.setting}-s{self.seed}"


BASE = {"batch_size": 64, "epochs": 10}
WITHOUT_NORM = {"optimizer": "adamw", "lr": 0.005, "lr_min": 0.0005}
# The recipe of digits, for as long as FGSM at 0.18 takes to become robust and to collapse.
RESNET = {"width": 16, "batch_size": 128, "epochs": 25}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "eps10": ("convnet-bn", {"eps": "0.1"}),
    "eps15": ("convnet-bn", {"eps": "0.15"}),
    "eps20": ("convnet-bn", {"eps": "0.2"}),
    "warm20": ("convnet-bn", {"eps": "0.2", "eps_warmup": 3.0}),
    "crop20": ("convnet-bn", {"eps": "0.2", "augment": ("crop:1",)}),
    "no-norm15": ("convnet", {"eps": "0.15", **WITHOUT_NORM}),
    "no-norm25": ("convnet", {"eps": "0.25", "eps_warmup": 3.0, **WITHOUT_NORM}),
    "l2-1": ("convnet-bn", {"norm": "l2", "eps": "1"}),
    "l2-3": ("convnet-bn", {"norm": "l2", "eps": "3", "eps_warmup": 3.0}),
    "resnet10": ("preactresnet18", {"eps": "0.1", **RESNET}),
    "resnet18": ("preactresnet18", {"eps": "0.18", "eps_warmup": 8.0, **RESNET}),
    "long18": ("preactresnet18", {"eps": "0.18", "eps_warmup": 8.0, **RESNET, "epochs": 60}),
    "weak18": ("preactresnet18", {"eps": "0.18", "eps_warmup": 8.0, **RESNET, "epochs": 40}),
    "vit15": ("vit-small", {"eps": "0.15", "width": 48, "set": {"model.depth": 2, "model.heads": 3}}),
}
SLOW = ("resnet10", "resnet18", "long18", "vit15")  # for the cheap methods only
# For `weak18` only: so little noise, so long a step or so small a penalty that the method is close to FGSM.
WEAK: dict[str, dict[str, float]] = {
    "fgsm-rs": {"fgsm-rs.alpha": 2.0},
    "zerograd": {"zerograd.q": 0.05},
    "n-fgsm": {"n-fgsm.k": 0.25},
    "aaer": {"aaer.k": 0.25, "aaer.lambda1": 0.01},
    "elle": {"elle.lam": 1.0},
    "gradalign": {"gradalign.lam": 0.01},
}


def specs() -> Iterator[Spec]:
    """All runs, seed by seed."""
    for seed in range(SEEDS):
        pairs = list(product(SETTINGS, WITH_PERT_ALIGN + WITHOUT))
        random.Random(seed).shuffle(pairs)
        for setting, method in pairs:
            network, values = SETTINGS[setting]
            if values.get("norm", "linf") not in methods.info(method).norms:
                continue
            if setting == "weak18":
                if method not in WEAK:
                    continue
                values = values | {"set": WEAK[method]}
            if setting in SLOW and (method not in CHEAP or seed > 1):
                continue
            yield Spec(method, setting, seed, network, BASE | values)


def measure_unseen(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> dict[str, float]:
    """Accuracy of images that are not trained on, and the alignments of the first few of them."""
    few = measure(model, x[:FEW], y[:FEW], threat, ("pertalign", "altpertalign"))
    alignments = {"look": few["pertalign"], "alt": few["altpertalign"]}
    return measure(model, x, y, threat, ("fgsm", "pgd")) | alignments


class Recorder(Hook):
    """Keeps the numbers of every step and the measurements of the held-out images."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}

    def start(self, run: Run) -> None:
        """Choose the held-out images."""
        images = run.splits.watched
        chosen = stratified(images.labels, min(IMAGES, len(images)), seed=0)
        self.x, self.y = next(images.subset(chosen).batches(IMAGES, run.device))

    def after_step(self, run: Run, out: object) -> None:
        """Measure, if this step is one of those."""
        step = run.state.step
        if step % EVERY:
            return
        self.rows[step] = measure_unseen(run.state.model, self.x, self.y, run.threat)

    def on_numbers(self, run: Run, step: int, numbers: dict[str, float]) -> None:
        """Keep what training computed anyway."""
        self.rows.setdefault(step, {}).update(numbers)


def train(spec: Spec) -> list[dict[str, float]]:
    """The rows of one run; a run whose loss is no longer finite ends there."""
    values = spec.values | {"method": spec.method, "seed": spec.seed, "dataset": "digits"}
    if spec.method == "free":
        values |= {"epochs": FREE_EPOCHS, "lr": values.get("lr", 0.2) / 5}
        values["eps_warmup"] = values.get("eps_warmup", 0.0) / 2
    quick = {"threads": 1, "eval_every": 0, "snapshots": False, "guard": "off", "limit_test": 20}
    recorder, model = Recorder(), None
    if spec.network.startswith("convnet"):
        torch.manual_seed(spec.seed)
        model = convnet(spec.network == "convnet-bn")
    else:
        values["model"] = spec.network
    with tempfile.TemporaryDirectory() as scratch:
        values |= quick | {"attacks": ("clean",), "out": f"{scratch}/run"}
        try:
            training.train(
                Request(values, source="argument").resolve(), model=model, hooks=[recorder], quiet=True
            )
        except RunError as error:
            print(f"{spec.name}: {error}", flush=True)
    return [{"step": step, **numbers} for step, numbers in sorted(recorder.rows.items())]


def write(path: Path, key: tuple[str, str, int], rows: list[dict[str, float]]) -> None:
    """Write the rows of a run as compressed CSV, whole or not at all."""
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    with gzip.open(scratch, "wt", newline="") as file:
        table = csv.writer(file)
        table.writerow([*KEYS, *COLUMNS])
        for row in rows:
            table.writerow([*key, int(row["step"]), *(short(row.get(name)) for name in COLUMNS[1:])])
    scratch.replace(path)


def short(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.{DIGITS}f}".rstrip("0").rstrip(".")


def run_one(spec: Spec, work: Path) -> str:
    """Train one run and write its file."""
    write(work / f"{spec.name}.csv.gz", (spec.method, spec.setting, spec.seed), train(spec))
    return spec.name


def end_with_parent() -> None:
    """End this worker as soon as the runner has ended; a run that is not complete leaves no file."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of the files of single runs")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="only runs whose name begins with this regular expression")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    wanted = [spec for spec in specs() if re.match(args.only, spec.name)]
    missing = [spec for spec in wanted if not (args.work / f"{spec.name}.csv.gz").exists()]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, mp_context=context, initializer=end_with_parent) as pool:
        futures = {pool.submit(run_one, spec, args.work): spec for spec in missing}
        for count, future in enumerate(as_completed(futures), start=1):
            failure = future.exception()
            name = futures[future].name
            print(f"{count}/{len(missing)} {name}{f': {failure}' if failure else ''}", flush=True)


if __name__ == "__main__":
    main()
