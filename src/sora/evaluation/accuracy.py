"""Accuracy under attacks: the same batches and the same random numbers every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sora._checks import check_model, check_threat
from sora._devices import pick_device
from sora._passes import bare, frozen
from sora._seeds import seeded
from sora.attacks import Attack, create_all
from sora.errors import UserError, short
from sora.evaluation._checks import inspect_model
from sora.evaluation.adversaries import AllVoid, AttackFailed
from sora.evaluation.examples import Data, as_examples, in_precision_of
from sora.evaluation.fingerprints import fingerprint_of, identity_of, state_name
from sora.evaluation.progress import Meter
from sora.evaluation.result import Evaluation
from sora.evaluation.trust import Finding, masking_tests
from sora.evaluation.units import AttackRunner, UnitStore
from sora.runs.provenance import versions
from sora.threat import Threat

BATCH = 250


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
) -> Evaluation:
    """Measure a model's accuracy in evaluation mode; it is left in the mode it was in.

    The random numbers of each batch depend on (seed, attack, batch) alone: another run gives the same
    result to the last digit, whatever else is evaluated, and torch's own random state is not used.

    Args:
        model: From inputs to logits; moved to `device` if one is given.
        data: An `ImageSet`, a pair of tensors (inputs, labels), or an iterable of such batches, which is
            read into memory.
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
        network: What the network is apart from its weights; with `state`, units of another one are not used.
        keep_inputs: Keep the attacked inputs in the result, for one process.
        trust: Also run the masking tests (`Evaluation.trust`); one that fails makes the verdict `suspect`.
        trust_source: A second model for them, to transfer attacks from.

    Raises:
        AttackFailed: An attack left the ball, the box or the shape of its inputs. It is raised after the
            other attacks have finished, and holds their result.
    """
    check_model(model)
    check_threat(threat)
    for what, number, low in (("batch size", batch_size, 1), ("seed", seed, 0)):
        if not isinstance(number, int) or isinstance(number, bool) or number < low:
            raise UserError(f"{what} {short(number)}; expected {low} or more")
    if shard and keep_inputs:
        raise UserError("attacked inputs are kept by one process only; evaluate them without torchrun")
    chosen, given, model = create_all(attacks), as_examples(data), bare(model)
    target = placed(model, device)
    folder, of = None, dict[str, Any]()
    if state is not None:  # before the first pass, which may change attributes of the model
        of = fingerprint_of(model, given, threat, seed=seed, batch_size=batch_size, network=network)
        folder = Path(state) / state_name(of, threat)
    with frozen(model), Meter(model, progress) as meter:
        examples = in_precision_of(model, given)
        x, y = examples.take(torch.arange(min(batch_size, len(examples.labels))), target)
        with seeded(seed):
            inspection = inspect_model(model, x, y, examples.labels, threat, num_classes)
        chosen = [attack.for_classes(inspection.num_classes) for attack in chosen]
        for attack in chosen:
            attack.check(x, y, threat)
        code = {attack.name: code_versions(attack, threat) for attack in chosen}
        runner = AttackRunner(
            model,
            examples,
            threat,
            target,
            batch_size=batch_size,
            seed=seed,
            store=UnitStore(folder, [attack.name for attack in chosen]),
            meter=meter,
            shard=shard,
            keep_inputs=keep_inputs,
        )
        outcomes = runner.run(chosen)
        findings = list[Finding]()
        if trust:
            findings = masking_tests(
                model, examples, threat, target, batch_size=batch_size, seed=seed, source=trust_source
            )
    if not outcomes:
        raise AttackFailed([*runner.failed.values()]) if runner.failed else AllVoid(runner.void, code)
    circumstances = {"seed": seed, "batch_size": batch_size}
    evaluation = Evaluation(
        threat=threat,
        labels=examples.labels,
        num_classes=inspection.num_classes,
        predictions={name: outcome.predictions for name, outcome in outcomes.items()},
        settings={
            a.name: a.settings(threat) | circumstances | _broken(runner, a)
            for a in chosen
            if a.name in outcomes
        },
        zero_gradients=inspection.zero_gradients,
        nonnegative=inspection.nonnegative,
        randomised=inspection.randomised,
        dynamic=inspection.dynamic,
        void=runner.void,
        versions={name: code[name] for name in (*outcomes, *runner.void)},
        inputs={name: each.inputs for name, each in outcomes.items() if each.inputs is not None},
        fingerprint=of,
        trust=findings,
    )
    if runner.failed:
        raise AttackFailed([*runner.failed.values()], [evaluation])
    return evaluation


def _broken(runner: AttackRunner, attack: Attack) -> dict[str, Any]:
    """How many images each part broke, for attacks of several parts."""
    return {"broken": runner.broken[attack.name]} if len(attack.parts) > 1 else {}


def code_versions(attack: Attack, threat: Threat) -> dict[str, str | None]:
    """The versions of the code that runs an attack, and the attack's own (`identity_of`)."""
    packages = {package: metadata.version(package) for package in attack.packages}
    return {**versions(), **packages, "attack": identity_of(attack, threat)}


def placed(model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Move a model to a device if one is given; where it is then."""
    if device is None:
        return device_of(model)
    target = pick_device(device)
    model.to(target)
    return target


def device_of(model: nn.Module) -> torch.device:
    """Where a model's parameters are; the CPU for a model without any."""
    return next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
