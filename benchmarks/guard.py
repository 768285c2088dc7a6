"""What the guard and the monitors add to a training step.

    python benchmarks/guard.py [--width 16] [--batch 128] [--rounds 31] [--threads 1 --clock cpu]

One step is timed with PertAlign computed as in every run, with the guard listening to it, and without
PertAlign. The guard hears every step at once, as with `--log-every 1`, its dearest setting: a run brings the
values of ten steps to the host in one transfer. A monitor's look at as many images as a batch has is given
in multiples of one step.
"""

from __future__ import annotations

from _timing import EPS, Call, Trainer, arguments, finish, interleave, ratio, relative, start, table

import sora
from sora import methods
from sora.evaluation.diagnostics import DIAGNOSTICS, diagnose


def heard_step(trainer: Trainer, method: methods.Method, guard: sora.Guard | None) -> Call:
    """One step; the guard hears its PertAlign."""

    def run() -> None:
        value = method.step(trainer.model, trainer.x, trainer.y).pert_align
        trainer.update()
        if guard is not None:
            guard.update(value.item())

    return run


def main() -> None:
    args = start(arguments(__doc__, width=16, batch=128, rounds=31))
    trainer = Trainer.build(args.width, args.batch)
    result: dict[str, object] = {"width": args.width, "batch": args.batch}
    for name in ("fgsm", "sora"):
        contestants = {
            "guard off": heard_step(trainer, trainer.method(name), None),
            "guard on": heard_step(trainer, trainer.method(name), sora.Guard()),
            "PertAlign not computed": heard_step(trainer, trainer.method(name, observing=False), None),
        }
        rows = relative(interleave(contestants, args.rounds, args.clock), "guard off")
        table(f"{name}: one step", rows)
        result[name] = rows
    threat = sora.Linf(EPS)
    looks: dict[str, Call] = {"step": trainer.step_of(trainer.method("fgsm"))}
    for monitor in DIAGNOSTICS:
        looks[monitor] = lambda monitor=monitor: diagnose(  # type: ignore[misc]
            trainer.model, trainer.x, trainer.y, threat, (monitor,)
        )
    times = interleave(looks, max(3, args.rounds // 4), args.clock)
    rows = [{"monitor": name, "steps": ratio(times, name, "step")["ratio"]} for name in DIAGNOSTICS]
    table("one look, in FGSM steps", rows)
    finish(args, "guard", {**result, "monitors": rows})


if __name__ == "__main__":
    main()
