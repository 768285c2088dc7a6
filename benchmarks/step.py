"""What a training step of each method costs, relative to FGSM-RS, and where SORA's time goes.

python benchmarks/step.py [--width 16] [--batch 128] [--rounds 15] [--all] [--threads 1 --clock cpu]
"""

from typing import Any

from _timing import CLOCKS, Trainer, arguments, finish, interleave, quartiles, relative, start, table

from sora import methods

FEW = ("benign", "fgsm", "n-fgsm", "pgd-10")


def phases(trainer: Trainer, rounds: int, clock: str) -> list[dict[str, Any]]:
    """Median milliseconds of the parts of SORA's step, and their share of it."""
    method, now = trainer.method("sora"), CLOCKS[clock]
    spent: dict[str, list[float]] = {name: [] for name in ("draw", "craft", "learn", "finish", "update")}

    def timed(name: str, call: Any) -> Any:
        def wrapped(*args: Any, **known: Any) -> Any:
            began = now()
            result = call(*args, **known)
            spent[name].append(now() - began)
            return result

        return wrapped

    method.draw = timed("draw", method.draw)  # type: ignore[method-assign]
    method.craft = timed("craft", method.craft)  # type: ignore[method-assign]
    method.learn = timed("learn", method.learn)  # type: ignore[method-assign]
    method.finish = timed("finish", method.finish)  # type: ignore[method-assign]
    trainer.update = timed("update", trainer.update)  # type: ignore[method-assign]
    step = trainer.step_of(method)
    for _ in range(rounds + 1):
        step()
    medians = {name: quartiles(values[1:])[1] for name, values in spent.items()}
    total = sum(medians.values())
    return [{"phase": name, "ms": 1e3 * s, "share": s / total} for name, s in medians.items()]


def main() -> None:
    parser = arguments(__doc__, width=16, batch=128, rounds=15)
    parser.add_argument("--all", action="store_true", help="every method, not only the main ones")
    args = start(parser)
    trainer = Trainer.build(args.width, args.batch)
    others = methods.names() if args.all else FEW
    names = ["fgsm-rs", "sora", *(name for name in others if name not in ("fgsm-rs", "sora", "pgd"))]
    candidates = {name: trainer.step_of(trainer.method(name)) for name in names}
    for name in ("fgsm-rs", "sora"):
        candidates[f"{name}, observation off"] = trainer.step_of(trainer.method(name, observing=False))
    times = interleave(candidates, args.rounds, args.clock)
    result = {
        "width": args.width,
        "batch": args.batch,
        "relative to fgsm-rs": relative(times, "fgsm-rs"),
        "relative to fgsm-rs, observation off": relative(times, "fgsm-rs, observation off"),
        "relative to sora": relative(times, "sora"),
        "phases of sora": phases(trainer, args.rounds, args.clock),
    }
    for title, rows in result.items():
        if isinstance(rows, list):
            table(f"{title} (width {args.width}, batch {args.batch})", rows)
    finish(args, "step", result)


if __name__ == "__main__":
    main()
