"""Accuracy under attacks: the same batches and the same random numbers every time."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sora._checks import check_model, check_threat
from sora._devices import pick_device
from sora._passes import bare, frozen, held, own_order
from sora._seeds import seeded
from sora._task import CLASSES, PLAIN, Judge, Task
from sora.attacks import Attack, create_all
from sora.errors import UserError, short
from sora.evaluation.examples import Data, Examples, as_examples, in_precision_of
from sora.evaluation.fast_copy import fast_copy, same_function
from sora.evaluation.fingerprints import Fingerprint, fingerprint_of, hash_inputs, identity_of, state_name
from sora.evaluation.progress import PassMeter
from sora.evaluation.scores import OBSERVED, Evaluation
from sora.evaluation.trust import masking_tests
from sora.evaluation.units import LONG, Attacked, AttackRunner, UnitStore
from sora.evaluation.validity import AttackFailed, inspect_model
from sora.runs.facts import package_version
from sora.runs.facts import versions as installed_versions
from sora.threat import Threat

BATCH = 250
INSPECTED = 32  # examples of the first batch that show whether an accuracy of the model has a meaning


@dataclass(frozen=True)
class EvaluationOptions:
    """How a model is evaluated; each field is an argument of `evaluate` or a field of its result."""

    batch_size: int = BATCH
    seed: int = 0
    num_classes: int | None = None
    device: torch.device | str | None = None
    progress: bool = False
    shard: bool = False
    network: Mapping[str, Any] | None = None
    keep_inputs: bool = False
    trust: bool = False
    trust_source: nn.Module | None = None
    doubts: Sequence[str] = ()
    task: Task = PLAIN
    attack_seeds: int = 1
    fast: bool = True
    compile: bool = False

    @property
    def copy_kind(self) -> str:
        """What results that come from a copy of the model are stored as."""
        return "compiled" if self.compile else "folded"

    def __post_init__(self) -> None:
        numbers = ("batch size", self.batch_size, 1), ("attack seeds", self.attack_seeds, 1)
        for what, number, low in (*numbers, ("seed", self.seed, 0)):
            if not isinstance(number, int) or isinstance(number, bool) or not low <= number < 1 << 64:
                raise UserError(f"{what} {short(number)}; expected {low} or more, below 2**64")
        if self.trust:
            self.task.refuse("the masking tests (trust)")
        if self.shard and self.keep_inputs:
            raise UserError("attacked inputs are kept by one process only; evaluate them without torchrun")


def evaluate(
    model: nn.Module,
    data: Data,
    threat: Threat,
    attacks: str | Sequence[str | Attack] = ("clean", "fgsm", "pgd10"),
    *,
    batch_size: int = BATCH,
    seed: int = 0,
    num_classes: int | None = None,
    device: torch.device | str | None = None,
    progress: bool = False,
    state: Path | str | None = None,
    shard: bool = False,
    network: Mapping[str, Any] | None = None,
    keep_inputs: bool = False,
    trust: bool = False,
    trust_source: nn.Module | None = None,
    loss: str | Judge = CLASSES,
    outputs: Callable[[Any], Tensor] | None = None,
    correct: Judge | None = None,
    fast: bool = True,
    compile: bool = False,
    attack_seeds: int = 1,
) -> Evaluation:
    """Measure a model's accuracy in evaluation mode; it is left in the mode it was in.

    The random numbers of each batch depend on (seed, attack, batch) alone: another run gives the same
    result to the last digit, whatever else is evaluated, and torch's own random state is not used.

    Args:
        model: From inputs to logits; moved to `device` if one is given.
        data: An `ImageSet`, a pair of tensors (inputs, targets), a torch `Dataset` of such pairs, or an
            iterable of batches, which is read into memory.
        threat: The norm ball and the box.
        attacks: Attacks or their names, see `sora list attacks`.
        batch_size: Examples attacked together. It determines the memory needed, and the random numbers.
        seed: Seed of the attacks' random numbers.
        num_classes: The number of classes of the data; a model with another number is refused.
        device: Where to compute; the model's own device if not given.
        progress: Show a progress bar with the remaining time.
        state: Folder for finished units of work. The same evaluation started again after an interruption
            continues from there and gives the same result; a different one ignores them.
        shard: Split the work over the processes of torch.distributed, all of which must make this call;
            each gets the whole result, equal to that of a single process.
        network: Description of the model apart from its weights; with `state`, units of another are not used.
        keep_inputs: Keep the attacked inputs in the result, for one process.
        trust: Also run the masking tests (`Evaluation.trust`); one that fails makes the verdict `suspect`.
        trust_source: A second model for them, to transfer attacks from.
        loss: What attacks increase, as in `sora.methods.create`: a name, or a function.
        outputs: From what the model returns to a tensor; logits are recognised without it.
        correct: A function `(output, target) -> (B,)` of bools. A loss of your own without it gives mean
            losses (`Evaluation.losses`) in place of accuracies, and no verdict.
        fast: Let images on the CPU pass through the model in channels-last order, and run attacks of many
            passes (AutoAttack, PGD with restarts) on a copy of the model whose BatchNorm layers are folded.
            Every result is checked on the model itself. The settings of an attack say if it used the copy,
            and on which examples the two differed; these are attacked again on the model.
        compile: Compile the copy, which takes minutes and makes its passes faster.
        attack_seeds: Repeat attacks with a random start with so many seeds, from `seed` on. The accuracy is
            that of the first; the lowest, mean and highest are in `attacks[NAME]["seeds"]`.

    Raises:
        AttackFailed: An attack left the ball, the box or the shape of its inputs. It is raised after the
            other attacks have finished, and holds their result.
    """
    check_model(model)
    check_model(trust_source or model)
    check_threat(threat)
    options = EvaluationOptions(
        batch_size, seed, num_classes, device, progress, shard, network, keep_inputs, trust, trust_source,
        task=Task(loss, outputs, correct), fast=fast, compile=compile, attack_seeds=attack_seeds,
    )  # fmt: skip
    examples, fingerprint = as_examples(data), None
    if state is not None:
        hashes = hash_inputs(model, examples, network)
        fingerprint = fingerprint_of(hashes, threat, seed, batch_size, options.task)
    evaluation, failed = measure(model, examples, threat, create_all(attacks), options, fingerprint, state)
    if failed:
        raise AttackFailed(failed, [evaluation] if evaluation.predictions else [])
    if not evaluation.predictions:
        raise UserError("; ".join(evaluation.void.values()))
    return evaluation


def measure(
    model: nn.Module,
    examples: Examples,
    threat: Threat,
    attacks: Sequence[Attack],
    options: EvaluationOptions,
    fingerprint: Fingerprint | None = None,
    state: Path | str | None = None,
) -> tuple[Evaluation, list[str]]:
    """Run attacks as `evaluate` does; return the valid results, and what attacks did whose code is wrong."""
    model = bare(model)
    device, seed, batch_size = placed(model, options.device), options.seed, options.batch_size
    folder = None if state is None else Path(state) / state_name(fingerprint or {}, threat)
    source, task = options.trust_source or model, options.task
    copied, long = None, any(part.passes >= LONG for each in attacks for part in each.parts or (each,))
    if options.fast and task == PLAIN and long:
        with held(model), frozen(model):  # before the meter and others add hooks
            copied = fast_copy(model, options.compile)
    reads, order = task.reading(model), nullcontext() if options.fast else own_order(model)
    with held(model, source), frozen(model), reads, order, PassMeter(model, options.progress) as meter:
        examples = in_precision_of(model, examples)
        x, y = examples.take(torch.arange(min(batch_size, INSPECTED, len(examples.labels))), device)
        with seeded(seed):
            inspection = inspect_model(model, x, y, examples.labels, threat, options.num_classes, task)
        read = replace(task, outputs=None)
        attacks = [each.for_classes(inspection.num_classes) for each in attacks]
        attacks = [each if task == PLAIN else each.for_task(read) for each in attacks]
        for attack in attacks:
            attack.check(x, y, threat)
        versions = {attack.name: code_versions(attack, threat) for attack in attacks}
        if copied and (inspection.randomised or inspection.dynamic or not same_function(model, copied, x, y)):
            copied = None
        meter.count(copied)
        store = UnitStore(folder, [*versions])
        runner = AttackRunner(model, examples, threat, device, options, store, meter, copied)
        outcomes = runner.run(attacks)
        seeds = over_seeds(runner, outcomes, attacks, options) if task.judges else {}
        findings = masking_tests(model, examples, threat, device, options) if options.trust else []
    settings = {}
    for attack in attacks:
        if attack.name in outcomes:
            settings[attack.name] = attack.settings(threat) | {"seed": seed, "batch_size": batch_size}
            settings[attack.name] |= {"start": attack.start} if attack.start else {}
            settings[attack.name] |= seeds.get(attack.name, {})
            if (losses := outcomes[attack.name].losses) is not None:
                settings[attack.name]["loss"] = float(losses.double().mean())
            if len(attack.parts) > 1:
                settings[attack.name]["broken"] = runner.broken[attack.name]
            if attack.name in runner.differed:
                differed = runner.differed[attack.name]
                settings[attack.name]["copy"] = {"kind": options.copy_kind, "differed": differed}
    evaluation = Evaluation(
        threat,
        task.labels(examples.labels),
        inspection.num_classes,
        {name: outcome.predictions for name, outcome in outcomes.items()},
        settings,
        **{name: getattr(inspection, name) for name in OBSERVED},
        void=runner.void,
        versions={name: versions[name] for name in (*outcomes, *runner.void)},
        inputs={name: each.inputs for name, each in outcomes.items() if each.inputs is not None},
        fingerprint=fingerprint or {},
        trust=findings,
        doubts=options.doubts,
        judged=task.judges,
        chance=task.chance(examples.labels),
    )
    return evaluation, [*runner.failed.values()]


def over_seeds(
    runner: AttackRunner,
    outcomes: Mapping[str, Attacked],
    attacks: Sequence[Attack],
    options: EvaluationOptions,
) -> dict[str, dict[str, Any]]:
    """Repeat the attacks with a random start with the other seeds; return the accuracies by seed of each."""
    repeated = [attack for attack in attacks if attack.start == "random" and attack.name in outcomes]
    if options.attack_seeds == 1 or not repeated:
        return {}
    found = {attack.name: [runner.accuracy(outcomes[attack.name])] for attack in repeated}
    for number in range(1, options.attack_seeds):
        again = runner.with_seed(options.seed + number)
        for name, outcome in again.run(repeated).items():
            found[name].append(again.accuracy(outcome))
    return {
        name: {"seeds": {"n": len(all_), "min": min(all_), "mean": sum(all_) / len(all_), "max": max(all_)}}
        for name, all_ in found.items()
    }


def code_versions(attack: Attack, threat: Threat) -> dict[str, str | None]:
    """Return the versions of the code that runs an attack, and the attack's own (`identity_of`)."""
    packages = {package: package_version(package) for package in attack.packages}
    return {**installed_versions(), **packages, "attack": identity_of(attack, threat)}


def placed(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Move a model to a device if one is given, and return the device it is on then."""
    if device is None:
        return device_of(model)
    target = pick_device(device)
    model.to(target)
    return target


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's parameters; the CPU for a model without any."""
    return next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
