"""Random tiny runs over all methods and options."""

import random

_TINY = (
    "train --dataset digits --limit-train 96 --limit-test 12 --holdout 16 --width 4 --set model.stages=1"
    " --threads 1 --device cpu --quiet --out OUT"
)
TINY = _TINY.split()
_SMALLEST = (
    "--dataset digits --limit-train 16 --limit-test 10 --holdout 10 --width 4 --set model.stages=1 --epochs 1"
    " --batch-size 16 --attacks clean --threads 1 --device cpu --quiet"
)
SMALLEST = _SMALLEST.split()
CHEAP = ("fgsm", "fgsm-rs", "n-fgsm", "sora", "zerograd", "multigrad")  # affordable in runs of 70 steps
METRICS = ("gradalign", "aae", "kl", "elle", "pgd")
ATTACKS = ("clean", "fgsm", "pgd2", "clean,fgsm,pgd10", "clean,apgd-ce", "clean,pgd2x2")


def training(rng: random.Random) -> list[str]:
    """One run in a second or two: a method, and some of the options that must survive a kill."""
    if rng.random() < 0.25:
        return alarmed(rng)
    method, options = _method(rng), _options(rng)
    # Free AT replays whole batches; FGSM-LAW averages weights itself.
    for name, flag in (("free", "--accumulate"), ("fgsm-law", "--ema")):
        if name in method and flag in options:
            at = options.index(flag)
            del options[at : at + 2]
    return [*TINY, *method, *options]


def _method(rng: random.Random) -> list[str]:
    from sora import methods

    name = rng.choice(methods.names())
    entry = methods.info(name)
    norm = rng.choice(entry.norms)
    guards = ["off", "warn", "stop", "rollback", "pgd"] if entry.adversarial else ["off", "warn"]
    eps = {"linf": "0.15", "l2": "1.5"}[norm]
    return f"--method {name} --norm {norm} --eps {eps} --guard {rng.choice(guards)}".split()


def _options(rng: random.Random) -> list[str]:
    flags = f"--epochs {rng.choice('23')} --batch-size {rng.choice(['16', '32'])} --seed {rng.choice('01')}"
    flags += f" --attacks {rng.choice(ATTACKS)}"
    maybe = (
        "--ema 0.9",
        "--accumulate 2",
        "--eps-warmup 1.5",
        f"--checkpoint-every {rng.choice('12')}",
        "--no-snapshots",
        f"--monitor {','.join(rng.sample(METRICS, 2))} --monitor-every 2",
        f"--log-every {rng.choice('124')}",
        "--optimizer adamw --lr 0.01",
        f"--schedule {rng.choice(['cosine', 'multistep'])}",
        "--augment flip",
        "--holdout 0",
        f"--eval-every {rng.choice('02')}",
    )
    return [*flags.split(), *_some(rng, 0.25, *maybe)]


def _some(rng: random.Random, share: float, *choices: str) -> list[str]:
    """The flags of some choices, each with the same probability."""
    return " ".join(choice for choice in choices if rng.random() < share).split()


def alarmed(rng: random.Random) -> list[str]:
    """A run whose guard raises an alarm: a radius that no method survives, and enough steps to see it."""
    guard, log_every = rng.choice(["warn", "stop", "rollback", "rollback", "pgd"]), rng.choice("145")
    flags = f"--method {rng.choice(CHEAP)} --eps 0.9 --epochs 3 --batch-size 4 --log-every {log_every}"
    flags += f" --attacks clean --limit-test 10 --guard {guard}"
    return [*TINY, *flags.split(), *_some(rng, 0.25, "--checkpoint-every 7", "--ema 0.9")]


def two_ranks(rng: random.Random) -> list[str]:
    """A run for two processes."""
    flags = (
        f"--method {rng.choice(CHEAP)} --eps 0.15 --epochs 2 --batch-size 32 --log-every {rng.choice('12')}"
    )
    more = _some(rng, 0.3, "--checkpoint-every 1", "--ema 0.9", "--guard rollback")
    return [*TINY, *flags.split(), "--attacks", "clean,fgsm", *more]


def comparison(rng: random.Random) -> list[str]:
    """A comparison of two short runs."""
    flags = f"--methods {','.join(rng.sample(CHEAP, 2))} --epochs 2 --batch-size 32 --jobs 2"
    return ["compare", *TINY[1:], *flags.split(), "--attacks", "clean,fgsm", "--eps", "0.15"]


def finished_run(seed: int = 0) -> list[str]:
    """The run whose model the evaluations, probes and damaged files start from."""
    flags = "--method fgsm --eps 0.15 --epochs 2 --batch-size 16 --log-every 1 --monitor kl --monitor-every 2"
    return [*TINY, *flags.split(), "--seed", str(seed), "--checkpoint-every", "3", "--guard", "rollback"]


def evaluation(rng: random.Random) -> list[str]:
    """Evaluations of that run, in several units of work."""
    attacks = rng.choice(["clean,fgsm,pgd10", "clean,pgd10x3,apgd-ce", "fgsm,pgd50x10,clean", "clean,square"])
    eps = "0.9" if "square" in attacks else rng.choice(["0.05", "0.05,0.1", "0.05,l2:0.5"])
    flags = ["--attacks", attacks, "--eps", eps, "--limit", rng.choice(["12", "20"])]
    return ["evaluate", "OUT", *flags, "--batch-size", rng.choice("48"), "--threads", "1", "--quiet"]
