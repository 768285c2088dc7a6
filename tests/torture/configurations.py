"""Random tiny runs over all methods and options."""

from __future__ import annotations

import random

_TINY = (
    "train --dataset digits --limit-train 96 --limit-test 12 --holdout 16 --width 4 --set model.stages=1"
    " --threads 1 --device cpu --quiet --out OUT"
)
TINY = _TINY.split()
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
    flags = ["--method", name, "--norm", norm, "--eps", "0.15" if norm == "linf" else "1.5"]
    return [*flags, "--guard", rng.choice(guards)]


def _options(rng: random.Random) -> list[str]:
    flags = [
        "--epochs",
        rng.choice("23"),
        "--batch-size",
        rng.choice(["16", "32"]),
        "--seed",
        rng.choice("01"),
    ]
    flags += ["--attacks", rng.choice(ATTACKS)]
    maybe = (
        ["--ema", "0.9"],
        ["--accumulate", "2"],
        ["--eps-warmup", "1.5"],
        ["--checkpoint-every", rng.choice("12")],
        ["--no-snapshots"],
        ["--monitor", ",".join(rng.sample(METRICS, 2)), "--monitor-every", "2"],
        ["--log-every", rng.choice("124")],
        ["--optimizer", "adamw", "--lr", "0.01"],
        ["--schedule", rng.choice(["cosine", "multistep"])],
        ["--augment", "flip"],
        ["--holdout", "0"],
        ["--eval-every", rng.choice("02")],
    )
    for choice in maybe:
        if rng.random() < 0.25:
            flags += choice
    return flags


def alarmed(rng: random.Random) -> list[str]:
    """A run whose guard raises an alarm: a radius that no method survives, and enough steps to see it."""
    flags = ["--method", rng.choice(CHEAP), "--eps", "0.9", "--epochs", "3", "--batch-size", "4"]
    flags += ["--log-every", rng.choice(["1", "4", "5"]), "--attacks", "clean", "--limit-test", "10"]
    flags += ["--guard", rng.choice(["warn", "stop", "rollback", "rollback", "pgd"])]
    if rng.random() < 0.3:
        flags += ["--checkpoint-every", "7"]
    if rng.random() < 0.2:
        flags += ["--ema", "0.9"]
    return [*TINY, *flags]


def two_ranks(rng: random.Random) -> list[str]:
    """A run for two processes."""
    flags = ["--method", rng.choice(CHEAP), "--eps", "0.15", "--epochs", "2", "--batch-size", "32"]
    flags += ["--log-every", rng.choice("12"), "--attacks", "clean,fgsm"]
    for choice in (["--checkpoint-every", "1"], ["--ema", "0.9"], ["--guard", "rollback"]):
        if rng.random() < 0.3:
            flags += choice
    return [*TINY, *flags]


def comparison(rng: random.Random) -> list[str]:
    """A comparison of two short runs."""
    names = ",".join(rng.sample(CHEAP, 2))
    base = ["compare", *TINY[1:], "--methods", names, "--epochs", "2", "--batch-size", "32", "--jobs", "2"]
    return [*base, "--attacks", "clean,fgsm", "--eps", "0.15"]


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
