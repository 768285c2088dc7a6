"""Our training step and evaluation beside those of other packages, on the same plain module and images.

The module is one that its owner wrote: NCHW weights, an input in [0, 1], a loop of their own. Every package
is used as its documentation says, at 8/255. A package that is not installed, or fails, says why.

    pip install -e '.[bench]'
    pip install --no-deps torchattacks  # it requires torchvision, but runs without it
    python benchmarks/peers.py [--width 16] [--batch 128] [--images 256] [--rounds 11]
    python benchmarks/peers.py --rounds 0 --autoattack RUN --modules [--limit 200] [--compile]

The last command runs the original AutoAttack and ours, standard version, on the models of runs and on three
small modules trained for a minute, and compares which images are lost.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

import torch
from _timing import (
    CLOCKS,
    EPS,
    MEAN,
    STD,
    Call,
    arguments,
    finish,
    interleave,
    quartiles,
    ratio,
    start,
)
from torch import Tensor, nn
from torch.nn import functional as F

import sora
from sora import attacks, methods, models
from sora._seeds import mix
from sora.data import stratified
from sora.threat import Linf

ALPHA, STEPS, STEP = 1.25 * EPS, 10, EPS / 4
PACKAGES = ("sora-at", "torch", "torchattacks", "foolbox", "adversarial-robustness-toolbox", "pyautoattack")


# One training step: the attack of the package, then an update on its result.


def with_attack(model: nn.Module, x: Tensor, y: Tensor, attack: Callable[[], Tensor]) -> Call:
    optimizer = sgd(model)

    def step() -> None:
        x_adv = attack()
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x_adv), y).backward()
        optimizer.step()

    return step


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)


def ours(name: str) -> Callable[[nn.Module, Tensor, Tensor], Call]:
    def build(model: nn.Module, x: Tensor, y: Tensor) -> Call:
        method, optimizer = methods.create(name, Linf(EPS)), sgd(model)

        def step() -> None:
            optimizer.zero_grad()
            method.step(model, x, y)
            optimizer.step()

        return step

    return build


def as_published(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    """The loop of Wong et al. 2020 (Fast is better than free), whose attack has a full backward pass."""

    def attack() -> Tensor:
        delta = torch.zeros_like(x).uniform_(-EPS, EPS)
        delta.data = torch.max(torch.min(delta, 1 - x), 0 - x)
        delta.requires_grad = True
        F.cross_entropy(model(x + delta), y).backward()
        delta.data = torch.clamp(delta + ALPHA * delta.grad.sign(), -EPS, EPS)
        return x + torch.max(torch.min(delta.detach(), 1 - x), 0 - x)

    return with_attack(model, x, y, attack)


def torchattacks_step(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    import torchattacks

    attack = torchattacks.FFGSM(model, eps=EPS, alpha=ALPHA)
    return with_attack(model, x, y, lambda: attack(x, y))


def foolbox_step(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    import foolbox

    attack = foolbox.attacks.LinfFastGradientAttack(random_start=True)

    def run() -> Tensor:
        wrapped = foolbox.PyTorchModel(model.eval(), bounds=(0, 1))
        return attack.run(wrapped, x, foolbox.criteria.Misclassification(y), epsilon=EPS)

    return with_attack(model, x, y, run)


def art_step(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    from art.attacks.evasion import FastGradientMethod

    attack = FastGradientMethod(art_classifier(model, x), eps=EPS, num_random_init=1, batch_size=len(x))
    pixels, labels = x.numpy(), y.numpy()
    return with_attack(model, x, y, lambda: torch.from_numpy(attack.generate(pixels, labels)))


# One evaluation: PGD with 10 steps from one random start, and the predictions.


def accuracy(model: nn.Module, x_adv: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((model(x_adv).argmax(1) == y).float().mean())


def our_evaluation(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    return lambda: sora.evaluate(model, (x, y), Linf(EPS), ["pgd10"]).accuracy["pgd10"]


def our_attack(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    pairs = [(x[k : k + 250], y[k : k + 250]) for k in range(0, len(x), 250)]
    return lambda: [sora.attacks.pgd(model, *pair, Linf(EPS)) for pair in pairs]


def torchattacks_evaluation(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    import torchattacks

    attack = torchattacks.PGD(model, eps=EPS, alpha=STEP, steps=STEPS)
    return lambda: accuracy(model, attack(x, y), y)


def foolbox_evaluation(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    import foolbox

    attack = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=STEPS)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1))
    return lambda: accuracy(model, attack(wrapped, x, y, epsilons=EPS)[1], y)


def art_evaluation(model: nn.Module, x: Tensor, y: Tensor) -> Call:
    from art.attacks.evasion import ProjectedGradientDescent

    options = {"eps": EPS, "eps_step": STEP, "max_iter": STEPS, "num_random_init": 1}
    classifier = art_classifier(model, x)
    attack = ProjectedGradientDescent(classifier, batch_size=250, verbose=False, **options)
    pixels, labels = x.numpy(), y.numpy()
    return lambda: (classifier.predict(attack.generate(pixels, labels)).argmax(1) == labels).mean()


def art_classifier(model: nn.Module, x: Tensor) -> Any:
    from art.estimators.classification import PyTorchClassifier

    shape = tuple(x.shape[1:])
    loss = nn.CrossEntropyLoss()
    return PyTorchClassifier(model, loss, shape, 10, clip_values=(0, 1), device_type="cpu")


STEP_LOOPS = {
    "SORA": ours("sora"),
    "FGSM-RS": ours("fgsm-rs"),
    "loop as published (Wong et al.)": as_published,
    "torchattacks FFGSM": torchattacks_step,
    "foolbox FGSM": foolbox_step,
    "ART FGSM": art_step,
}
EVALUATIONS = {
    "sora.evaluate": our_evaluation,
    "sora.attacks.pgd alone": our_attack,
    "torchattacks PGD": torchattacks_evaluation,
    "foolbox PGD": foolbox_evaluation,
    "ART PGD": art_evaluation,
}


def built(
    builders: Mapping[str, Any], model: nn.Module, x: Tensor, y: Tensor
) -> tuple[dict[str, Call], dict[str, str]]:
    """Candidates on copies of one module, and why others cannot run."""
    calls, missing = dict[str, Call](), dict[str, str]()
    for name, build in builders.items():
        try:
            calls[name] = build(copy.deepcopy(model), x, y)
            calls[name]()
        except Exception as error:  # whatever a package raises on this machine
            calls.pop(name, None)
            missing[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return calls, missing


def measured(title: str, builders: Mapping[str, Any], args: Any, *data: Any) -> list[dict[str, Any]]:
    """A row for each candidate: seconds, and the first one's time divided by it."""
    calls, missing = built(builders, *data)
    times, ours_first = interleave(calls, args.rounds, args.clock), next(iter(builders))
    rows = []
    for name, values in times.items():
        low, middle, high = (f"{1e3 * value:.0f}" for value in quartiles(values))
        own = ratio(times, ours_first, name)
        share = f"{own['ratio']:.3f} ({own['low']:.3f} to {own['high']:.3f}) / {own['of minima']:.3f}"
        rows.append({title: name, "ms": f"{middle} ({low} to {high})", f"{ours_first} over it": share})
    return rows + [{title: name, "ms": "-", f"{ours_first} over it": why} for name, why in missing.items()]


def markdown(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table for docs/results/speed.md: medians (quartiles) / quotients of minima."""
    print()
    for line in (list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)):
        print(f"| {' | '.join(map(str, line))} |")


class Subject(NamedTuple):
    """A model that AutoAttack is run on, as its owner has it, and its test images."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    eps: float


def subjects(args: Any) -> Iterator[Subject]:
    """The models of runs, and with --modules three modules of a user's own, trained for a minute."""
    from sora.evaluation.subject import subject_of_run

    for run in args.autoattack:
        subject = subject_of_run(run, data_dir=args.data_dir)
        images, _ = subject.images(args.limit)
        model = subject.model.to(memory_format=torch.contiguous_format)
        yield Subject(run, model, *tensors_of(images), subject.threats(None)[0].eps)
    if args.modules:
        cifar10 = sora.data.load("cifar10", args.data_dir)
        images = cifar10.test.subset(stratified(cifar10.test.labels, args.limit, seed=0))
        modules = {
            "convolutions with BatchNorm": convnet(batch_norm=True),
            "convolutions without BatchNorm": convnet(batch_norm=False),
            "ViT": models.create("vit-small", 10, width=96, depth=4, heads=3, patch=4),
        }
        for name, model in modules.items():
            adam = {} if "with " in name else {"optimizer": "adamw", "lr": 0.002, "lr_min": 0.0001}
            size = {"limit_train": 5000, "epochs": 6, "threads": args.threads}
            sora.fit(model, cifar10, eps=EPS / 2, quiet=True, **size, **adam)
            yield Subject(f"{name}, 4/255", model.eval(), *tensors_of(images), EPS / 2)


def convnet(batch_norm: bool) -> nn.Module:
    """A small network as somebody would write it."""
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128), (128, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    kept = [layer for layer in layers if batch_norm or not isinstance(layer, nn.BatchNorm2d)]
    return nn.Sequential(*kept, nn.Flatten(), nn.Linear(128 * 2 * 2, 10))


def tensors_of(images: sora.data.ImageSet) -> tuple[Tensor, Tensor]:
    return images.gather(torch.arange(len(images))).float().div_(255).contiguous(), images.labels


def autoattack(subject: Subject, args: Any) -> list[dict[str, Any]]:
    """Seconds of the original AutoAttack and of ours on a model, and which images each loses.

    The original gets the random numbers that ours draws, so that only rounding can tell them apart.
    """
    from pyautoattack import AutoAttack

    name, model, x, y, eps = subject
    now, rows, lost = CLOCKS[args.clock], [], dict[str, set[int]]()

    def original() -> Tensor:
        suite = AutoAttack(model, norm="Linf", eps=eps, version="standard", device="cpu")
        parts = attacks.create("aa").for_classes(10).parts
        suite.get_seed = iter([mix(0, part.stream, 0) for part in parts]).__next__
        suite.fab.n_target_classes = suite.apgd_targeted.n_target_classes = 9
        x_adv, _ = suite.run_standard_evaluation(x, y, batch_size=len(x))
        with torch.no_grad():
            return model(x_adv).argmax(1)

    def mine(compiled: bool) -> Tensor:
        found = sora.evaluate(model, (x, y), Linf(eps), ["aa"], compile=compiled, batch_size=len(x))
        print(f"{name}: {found.settings['aa'].get('copy')}")
        return found.predictions["aa"]

    calls = {"original AutoAttack": original, "sora.evaluate aa": lambda: mine(False)}
    if args.compile:
        calls["sora.evaluate aa, compiled"] = lambda: mine(True)
    for title, call in calls.items():
        if title.endswith("compiled"):
            sora.evaluate(model, (x, y), Linf(eps), ["square100", "apgd-ce"], compile=True)  # compiles
        began = now()
        predictions = call()
        seconds = now() - began
        lost[title] = set((predictions != y).nonzero()[:, 0].tolist())
        first = rows[0]["seconds"] if rows else seconds
        reference = lost["original AutoAttack"]
        row = {name: title, "seconds": round(seconds, 1)}
        row |= {"original over it": f"{first / seconds:.2f}", "lost": f"{len(lost[title])} of {len(y)}"}
        row |= {"here only": sorted(lost[title] - reference), "not here": sorted(reference - lost[title])}
        rows.append(row)
    return rows


def main() -> None:
    parser = arguments(__doc__, width=16, batch=128, images=256, rounds=11, limit=200)
    parser.add_argument(
        "--autoattack", metavar="RUN", nargs="+", default=[], help="compare AutoAttack on runs"
    )
    parser.add_argument(
        "--modules", action="store_true", help="compare AutoAttack on modules of a user's own"
    )
    parser.add_argument("--compile", action="store_true", help="AutoAttack also with compile=True")
    parser.add_argument("--data-dir")
    args = start(parser)
    found = {name: _version(name) for name in PACKAGES}
    print(", ".join(f"{name} {version}" for name, version in found.items()))
    result: dict[str, Any] = {"width": args.width, "batch": args.batch, "versions": found}
    if args.rounds:
        plain = models.create("preactresnet18", 10, width=args.width, mean=MEAN, std=STD)
        count = max(args.batch, args.images)
        x, y = torch.rand(count, 3, 32, 32), torch.randint(0, 10, (count,))
        few, many = (x[: args.batch], y[: args.batch]), (x[: args.images], y[: args.images])
        result["step"] = measured("step, plain NCHW module", STEP_LOOPS, args, plain, *few)
        markdown(result["step"])
        result["evaluation"] = measured("PGD-10", EVALUATIONS, args, plain.eval(), *many)
        markdown(result["evaluation"])
    for subject in subjects(args):
        result[f"AutoAttack, {subject.name}"] = rows = autoattack(subject, args)
        markdown(rows)
    finish(args, "peers", result)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
