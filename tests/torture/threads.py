"""One module used by several threads or lent to `fit`: results and flags as without company, or an error."""

import functools
import json
import pickle
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import nn

import sora
from sora.errors import RunError
from tests.torture.bench import RUN_LIMIT, Bench, Outcome, check_end

ROUNDS = 5
THREAT = sora.Linf(0.1)
X = torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(24) % 3
PIXELS, LABELS = (255 * X).to(torch.uint8).numpy(), Y.numpy()


def case(bench: Bench, number: int) -> Outcome:
    """One trial; successive cases go through all of them."""
    outcome, rng = Outcome("threads", number, inputs=1), bench.rng("threads", number)
    trial = TRIALS[number % len(TRIALS)]

    def report() -> int:
        print(json.dumps(trial(rng)))
        return 0

    ended = bench.child(report, bench.place(f"threads-{number}")).end(RUN_LIMIT)
    if check_end(outcome, ended, trial.__name__, (0,)):
        outcome.compare(trial.__name__, json.loads(ended.out.splitlines()[-1]))
    return outcome


def network() -> nn.Sequential:
    """A network with a layer that its user has frozen; no statistics move, so steps repeat exactly."""
    torch.manual_seed(0)
    free, kept = nn.BatchNorm2d(4, momentum=0.0), nn.BatchNorm2d(4)
    kept.eval().requires_grad_(False)
    return nn.Sequential(nn.Conv2d(1, 4, 3), free, nn.ReLU(), kept, nn.Flatten(), nn.Linear(144, 3))


def flags(model: nn.Module) -> object:
    """What a call must leave as it was: modes, and which parameters are trained."""
    modes = [module.training for module in model.modules()]
    return modes, [parameter.requires_grad for parameter in model.parameters()]


def together(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls in threads; a refusal is None, any other exception is raised."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
    refused = [isinstance(future.exception(), ValueError | TypeError | RunError) for future in futures]
    return [None if no else future.result() for no, future in zip(refused, futures, strict=True)]


def differing(found: dict[str, bool]) -> list[str]:
    """The names of those that are true."""
    return [name for name, wrong in found.items() if wrong]


def beside_an_evaluation(rng: random.Random, model: nn.Module, call: Callable[[], Any]) -> list[str]:
    """Repeat a call at random moments while another thread evaluates the same module."""
    before, alone, found = flags(network()), call(), set[str]()

    def calls() -> list[Any]:
        return [together(call)[0] for _ in range(4) if time.sleep(rng.uniform(0, 0.02)) is None]

    for _ in range(ROUNDS):
        results, _ = together(calls, lambda: accuracy(model))
        wrong = any(each not in (None, alone) for each in results)
        found |= set(differing({"results": wrong, "flags": flags(model) != before}))
    return sorted(found)


def accuracy(model: nn.Module) -> Any:
    return sora.evaluate(model, (X, Y), THREAT, "clean,pgd10x2", batch_size=8).accuracy


def two_evaluations(rng: random.Random) -> list[str]:
    model = network()
    return beside_an_evaluation(rng, model, lambda: accuracy(model))


def a_step_and_an_evaluation(rng: random.Random) -> list[str]:
    model, method = network(), sora.methods.create("fgsm", THREAT)

    def step() -> Any:
        model.zero_grad()
        method.step(model, X, Y)
        return [None if p.grad is None else p.grad.tolist() for p in model.parameters()]

    return beside_an_evaluation(rng, model, step)


def fit(images: Any = PIXELS, labels: Any = LABELS, seed: int = 0, model: nn.Module | None = None) -> Any:
    """The weights and flags of a network after a short training."""
    model, data = model or network(), ((images, labels), (PIXELS, LABELS))
    given = {"epochs": 4, "batch_size": 8, "attacks": "clean", "holdout": 0, "threads": 1, "quiet": True}
    sora.fit(model, data, "n-fgsm", 0.1, seed=seed, **given)
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}, flags(model)


def after(seconds: float, call: Callable[[], Any]) -> Any:
    time.sleep(seconds)
    return call()


def two_fits(rng: random.Random) -> list[str]:
    alone, found = [fit(seed=seed) for seed in range(2)], set[str]()
    for _ in range(ROUNDS):
        # Built before the threads start: a model's weights come from the generator of the whole process.
        calls = [functools.partial(fit, seed=seed, model=network()) for seed in range(2)]
        later = rng.uniform(0, 0.02)
        results = together(calls[0], functools.partial(after, later, calls[1]))
        found |= {f"fit {i}" for i, result in enumerate(results) if result not in (None, alone[i])}
    return sorted(found)


def modules_arrays_and_methods(_: random.Random) -> list[str]:
    """A frozen layer stays so, arrays may be views, and methods can be sent to other processes."""
    (weights, after), before = fit(), network().state_dict()
    [found] = together(lambda: fit(PIXELS[::-1], LABELS[::-1]))
    copied = fit(np.array(PIXELS[::-1]), np.array(LABELS[::-1]))
    wrong = {name: weights[name] != before[name].tolist() for name in before if name.startswith("3.")}
    wrong |= {"flags": after != flags(network()), "reversed arrays": found not in (None, copied)}
    for name in sora.methods.names():
        method = sora.methods.create(name, THREAT)
        wrong[name] = type(pickle.loads(pickle.dumps(method))) is not type(method)
    return differing(wrong)


TRIALS = [two_evaluations, a_step_and_an_evaluation, two_fits, modules_arrays_and_methods]
