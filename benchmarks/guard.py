"""What the guard, the second look and the monitors add to a training step.

    python benchmarks/guard.py [--width 16] [--batch 128] [--rounds 31] [--threads 1 --clock cpu]

First the two budgets: the rule's own work as a share of an FGSM step (at most 1 %), and the second look at
its default cadence as a share of a step of each method that needs it (at most 5 %).

One step is timed with PertAlign computed as in every run, with the guard reading it, and without
PertAlign. The guard reads every step at once, as with `--log-every 1`, the most expensive setting: by
default a run brings the values of ten steps to the host in one transfer. Then whole runs of 30 steps are
timed, with all that the loop does for a guard: lines of the log, and for `rollback` checkpoints to go
back to, here three in 30 steps, in a run of the paper's length ten in 390. One measurement of a monitor,
on as many images as a batch has, is given in multiples of one step.

    python benchmarks/guard.py --again RUN [RUN ...]

trains finished runs once more, in a temporary folder and without evaluations, and prints how often the guard
looked at held-out images and measured their ratio, and the share of the training time that this took.
"""

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from _timing import EPS, Call, Trainer, arguments, finish, interleave, ratio, relative, start, table

import sora
from sora import data, methods, metrics, training
from sora.runs import RunFolder
from sora.settings import Settings
from sora.training import alarms

STEPS = 30
VALUES = 1000  # the rule is timed on so many values at once: one takes about a microsecond


def rule_of(guard: sora.Guard) -> Call:
    """The rule's work for many steps, on values that are already on the host."""
    values = [0.5 + 0.3 * (step % 7) / 7 for step in range(VALUES)]
    return lambda: [guard.update(value) for value in values]


def look_at(trainer: Trainer) -> Call:
    """One look, on as many images as a run would take."""
    count = min(alarms.IMAGES, len(trainer.x) // alarms.SHARE)
    x, y = trainer.x[:count].clone(), trainer.y[:count]
    return lambda: alarms.second_look(trainer.model, x, y, sora.Linf(EPS))


def budgets(trainer: Trainer, rounds: int, clock: str) -> list[dict[str, object]]:
    """The rule and the second look as shares of a step."""
    entries = [methods.info(name) for name in methods.names()]
    without = [entry.name for entry in entries if entry.adversarial and not entry.has_pert_align]
    calls: dict[str, Call] = {"rule": rule_of(sora.Guard()), "look": look_at(trainer)}
    calls |= {name: trainer.step_of(trainer.method(name)) for name in ("fgsm", *without)}
    times = interleave(calls, rounds, clock)
    shares = [("rule", "fgsm", VALUES), *(("look", name, alarms.EVERY) for name in without)]
    return [
        {"what": what, "of a step of": name}
        | {key: f"{100 * value / every:.3g} %" for key, value in ratio(times, what, name).items()}
        for what, name, every in shares
    ]


def step_with_guard(trainer: Trainer, method: methods.Method, guard: sora.Guard | None) -> Call:
    """One step, whose PertAlign the guard reads."""

    def run() -> None:
        value = method.step(trainer.model, trainer.x, trainer.y).pert_align
        trainer.update()
        if guard is not None:
            guard.update(value.item())

    return run


def run(guard: str, width: int, batch: int, folder: Path) -> Call:
    """A whole FGSM training on random images; no value of the first 40 steps raises an alarm."""
    pixels, labels = torch.randint(0, 256, (STEPS * batch, 32, 32, 3), dtype=torch.uint8), torch.arange(10)
    train_set = data.ImageSet(pixels, labels.repeat(len(pixels) // 10 + 1)[: len(pixels)])
    dataset = data.Dataset("random", train_set, data.ImageSet(pixels[:10], labels), None, tuple("abcdefghij"))
    settings = {"method": "fgsm", "epochs": 1, "width": width, "batch_size": batch, "holdout": 0}
    settings |= {
        "attacks": ("clean",),
        "guard": guard,
        "threads": torch.get_num_threads(),
        "out": str(folder),
    }

    def whole() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        training.train(Settings.build(settings), dataset=dataset, quiet=True)

    return whole


def again(run: str) -> dict[str, object]:
    """What the guard measures on held-out images in a run, counted and timed while it is trained again."""
    spent: dict[str, list[float]] = {"look": [], "ratio": []}

    def timed(name: str, own: Callable[[alarms.Alarms], float]) -> Callable[[alarms.Alarms], float]:
        def call(self: alarms.Alarms) -> float:
            began = time.process_time()
            value = own(self)
            spent[name].append(time.process_time() - began)
            return value

        return call

    settings = RunFolder(Path(run)).read_settings()
    with TemporaryDirectory() as place, ExitStack() as stack:
        for name in spent:
            stack.enter_context(patch.object(alarms.Alarms, name, timed(name, getattr(alarms.Alarms, name))))
        changes: dict[str, Any] = {"eval_every": 0, "attacks": ("clean",), "limit_test": 10, "threads": 1}
        changes |= {"out": f"{place}/run", "snapshots": False, "monitor": ()}
        began = time.process_time()
        summary = training.train(replace(settings, **changes), quiet=True).summary
        seconds = time.process_time() - began
    share = sum(map(sum, spent.values())) / seconds
    return {
        "run": run,
        "steps": summary["co"]["watched_steps"],
        **{k: len(v) for k, v in spent.items()},
        "share": f"{share:.1%}",
    }


def main() -> None:
    parser = arguments(__doc__, width=16, batch=128, rounds=31)
    parser.add_argument(
        "--again", nargs="+", metavar="RUN", help="train these runs again and do nothing else"
    )
    args = start(parser)
    if args.again:
        table("what the guard measured", [again(run) for run in args.again])
        return
    trainer = Trainer.build(args.width, args.batch)
    result: dict[str, object] = {"width": args.width, "batch": args.batch}
    rows = budgets(trainer, max(5, args.rounds // 3), args.clock)
    table("shares of a step", rows)
    result["shares"] = rows
    for name in ("fgsm", "sora"):
        candidates = {
            "guard off": step_with_guard(trainer, trainer.method(name), None),
            "guard on": step_with_guard(trainer, trainer.method(name), sora.Guard()),
            "PertAlign not computed": step_with_guard(trainer, trainer.method(name, observing=False), None),
        }
        rows = relative(interleave(candidates, args.rounds, args.clock), "guard off")
        table(f"{name}: one step", rows)
        result[name] = rows
    with TemporaryDirectory() as place:
        runs = {
            guard: run(guard, args.width, args.batch, Path(place) / "run")
            for guard in ("off", "warn", "rollback")
        }
        rows = relative(interleave(runs, max(3, args.rounds // 6), args.clock), "off")
    table(f"fgsm: a run of {STEPS} steps by --guard", rows)
    result["runs"] = rows
    threat = sora.Linf(EPS)
    measurements: dict[str, Call] = {"step": trainer.step_of(trainer.method("fgsm"))}
    for monitor in metrics.names():
        measurements[monitor] = lambda monitor=monitor: metrics.measure(  # type: ignore[misc]
            trainer.model, trainer.x, trainer.y, threat, (monitor,)
        )
    times = interleave(measurements, max(3, args.rounds // 4), args.clock)
    rows = [{"monitor": name, "steps": ratio(times, name, "step")["ratio"]} for name in metrics.names()]
    table("one measurement, in FGSM steps", rows)
    finish(args, "guard", {**result, "monitors": rows})


if __name__ == "__main__":
    main()
