"""Attacks run in units of (attack, batch): each is computed once, by one process, and saved at once."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, distributed, nn

from sora._files import delete_folder, make_folder, read_bytes, remove_leftovers, write_text
from sora._seeds import mix, seeded
from sora.attacks import Attack, create
from sora.errors import RunError
from sora.evaluation.examples import Examples
from sora.evaluation.fingerprints import identity_of, short_hash
from sora.evaluation.progress import PassMeter
from sora.evaluation.validity import (
    Invalid,
    Void,
    answers_of,
    check_attacked,
    check_unchanged,
    finite_gradients,
)
from sora.runs.weights import read_verified, write_verified
from sora.threat import Threat

if TYPE_CHECKING:
    from sora.evaluation.accuracy import EvaluationOptions

TIMEOUT = timedelta(days=1)
LONG = 100  # passes per example from which an attack runs on a copy of the model
NAMES = "attacks.txt"  # which attacks the units beside it belong to


class Attacked(NamedTuple):
    """The outcome of an attack on some examples: answers, and inputs and losses if kept.

    `differed` is 1 where an attack on a copy of the model succeeded on one of the two only.
    """

    predictions: Tensor
    inputs: Tensor | None = None
    losses: Tensor | None = None
    differed: Tensor | None = None

    def put(self, rows: Tensor | slice, part: Attacked) -> None:
        """Enter the outcome of some of the examples."""
        for mine, theirs in zip(self, part, strict=True):
            if mine is not None and theirs is not None:
                mine[rows] = theirs


class UnitStore:
    """Predictions of finished units, one small file each; a unit without a complete file is not done.

    Evaluations of the same model at the same time each write into a folder of their own, named after their
    attacks, and read from all of them: none deletes what another may still need. Nothing is stored without
    a folder.
    """

    def __init__(self, folder: Path | None, attacks: Sequence[str] = ()) -> None:
        self._folder = folder
        self.seed = ""  # in the names of files, for repetitions of an attack with another seed
        self._attacks = "\n".join(sorted(attacks))
        self._own = None if folder is None else folder / short_hash(self._attacks.encode())

    def load(self, key: str, count: int, with_inputs: bool) -> Attacked | None:
        """Return a unit's outcome; None if it is not done or its file is damaged."""
        name = f"*/{key}{self.seed}.safetensors"
        for path in sorted(self._folder.glob(name)) if self._folder is not None else ():
            try:
                stored = read_verified(path)
            except RunError:
                continue
            predictions = stored.tensors.get("predictions", torch.empty(0))
            inputs = stored.tensors.get("inputs")
            if stored.verified and predictions.shape == (count,) and (inputs is not None) >= with_inputs:
                rest = (stored.tensors.get(name) for name in ("losses", "differed"))
                return Attacked(predictions, inputs, *rest)
        return None

    def save(self, key: str, outcome: Attacked) -> None:
        """Store a unit's outcome."""
        if self._own is not None:
            for folder in (self._own.parent.parent, self._own.parent, self._own):
                make_folder(folder)
            if not (self._own / NAMES).exists():
                write_text(self._own / NAMES, self._attacks)
            tensors = {name: kept for name, kept in outcome._asdict().items() if kept is not None}
            write_verified(self._own / f"{key}{self.seed}.safetensors", tensors, key)


def remove_units(folder: Path, recorded: Sequence[str]) -> None:
    """Delete the units of evaluations whose attacks are all in a record now; those of others stay.

    Units whose attacks are no longer known, because the file is damaged, are deleted too: nothing else ever
    would, and an evaluation that needs them computes them again.
    """
    remove_leftovers(folder)
    for path in folder.glob(f"*/{NAMES}"):
        names = read_bytes(path)
        damaged = short_hash(names) != path.parent.name
        if damaged or set(names.decode().split("\n")) <= set(recorded):
            delete_folder(path.parent)
    for parent in (folder, folder.parent):
        with contextlib.suppress(OSError):  # not there, or not empty: another evaluation is under way
            parent.rmdir()


class AttackRunner:
    """Runs attacks on one model and one list of examples, unit by unit.

    An attack with parts starts from the correctly classified examples, and each part from those that the
    parts before left correctly classified. That list is fixed when the part begins, so its batches and
    their seeds are the same in every run.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: Examples,
        threat: Threat,
        device: torch.device,
        options: EvaluationOptions,
        store: UnitStore,
        meter: PassMeter,
        copied: nn.Module | None = None,
    ) -> None:
        self._model, self._examples, self._threat, self._device = model, examples, threat, device
        self._options, self._store, self._meter = options, store, meter
        self._task, self._labels = options.task, options.task.labels(examples.labels)
        self._copied = copied  # of the model, for attacks of many passes
        shard = options.shard
        self._rank, self._world = (distributed.get_rank(), distributed.get_world_size()) if shard else (0, 1)
        # A rank may wait for hours for the last unit of another; the default group would time out.
        self._group = distributed.new_group(timeout=TIMEOUT, backend="gloo") if shard else None
        # Kept longer than the group: in torch 2.6 an ending group waits for its threads, and a thread that
        # has the last reference to a tensor waits for the interpreter.
        self._stopped = torch.zeros((), dtype=torch.int64)
        self._finished: dict[str, Attacked] = {}
        self.void: dict[str, str] = {}  # attacks without a result, and why
        self.failed: dict[str, str] = {}  # attacks whose own code is wrong, and what it did
        self.broken: dict[str, dict[str, int]] = {}
        """How many images each part of an attack broke that the parts before it did not."""
        self.differed: dict[str, list[int]] = {}
        """Images that an attack on the copy broke on one of copy and model only, if it used the copy."""

    def model_for(self, attack: Attack) -> nn.Module:
        """Return what an attack runs on: the copy, if there is one, for attacks of many passes."""
        return self._copied if self._copied is not None and attack.passes >= LONG else self._model

    def with_seed(self, seed: int) -> AttackRunner:
        """Return a runner for the same examples with another seed."""
        store, options = copy.copy(self._store), replace(self._options, seed=seed)
        store.seed = f".seed{seed}"
        given = self._model, self._examples, self._threat, self._device
        return AttackRunner(*given, options, store, self._meter)

    def accuracy(self, outcome: Attacked) -> float:
        """Return the share of correct answers."""
        return int((outcome.predictions == self._labels).sum()) / len(self._labels)

    def run(self, attacks: Sequence[Attack]) -> dict[str, Attacked]:
        """Return the outcome of each attack that has a valid one, by name."""
        for attack in attacks:
            for chain in chains(attack):
                passes = chain[-1].passes * len(self._examples.labels) // self._world
                self._meter.plan(key_of(chain, self._threat), passes)
        outcomes = {}
        try:
            for attack in attacks:
                try:
                    outcomes[attack.name] = self._outcome_of(attack)
                except Void as reason:
                    self.void[attack.name] = str(reason)
                except Invalid as reason:  # reported when the other attacks have finished
                    self.failed[attack.name] = str(reason)
        finally:
            if self._group is not None:
                distributed.destroy_process_group(self._group)
        return outcomes

    def _outcome_of(self, attack: Attack) -> Attacked:
        labels = self._labels
        everything = torch.arange(len(labels))
        if not attack.parts:
            outcome = self._stage((attack,), everything)
            self._note(attack, everything, outcome)
            return outcome
        clean = self._stage((create("clean"),), everything)
        outcome = Attacked(*(None if each is None else each.clone() for each in clean))  # type: ignore[arg-type]
        broken = {}
        for chain in chains(attack):
            remaining = (outcome.predictions == labels).nonzero()[:, 0]
            stage = self._stage(chain, remaining)
            outcome.put(remaining, stage)
            self._note(attack, remaining, stage)
            broken[chain[-1].name] = len(remaining) - int((outcome.predictions == labels).sum())
        self.broken[attack.name] = broken
        return outcome

    def _note(self, attack: Attack, positions: Tensor, stage: Attacked) -> None:
        if stage.differed is not None:
            found = {*self.differed.get(attack.name, []), *positions[stage.differed > 0].tolist()}
            self.differed[attack.name] = sorted(found)

    def _stage(self, chain: tuple[Attack, ...], positions: Tensor) -> Attacked:
        """Return the outcome of the last attack of a chain, for the examples that the chain left."""
        key, attack, size = key_of(chain, self._threat), chain[-1], self._options.batch_size
        if key in self._finished:
            return self._finished[key]
        batches = torch.split(positions, size) if len(positions) else ()
        own = range(self._rank, len(batches), self._world)
        self._meter.plan(key, attack.passes * sum(len(batches[number]) for number in own))
        outcome, stopped = self._empty(len(positions), attack), None
        for number in own:
            title = f"{attack.name}, batch {number + 1} of {len(batches)}"
            with self._meter.unit(title, attack.passes * len(batches[number])):
                try:
                    unit = self._unit(f"{key}.{number}", attack, number, batches[number])
                except (Void, Invalid) as reason:
                    stopped = reason
                    break
                outcome.put(slice(number * size, number * size + len(batches[number])), unit)
        self._agree(outcome, stopped, attack)
        self._finished[key] = outcome
        return outcome

    def _agree(self, outcome: Attacked, stopped: Void | Invalid | None, attack: Attack) -> None:
        """Bring the units of all ranks together; raise on all of them if one was stopped by a unit."""
        if self._group is not None:  # units of other ranks are -1 here, their losses minus infinity
            for values in (outcome.predictions, outcome.losses, outcome.differed):
                if values is not None:
                    distributed.all_reduce(values, distributed.ReduceOp.MAX, self._group)
            kinds = (None, Void, Invalid)
            flag = self._stopped.fill_(kinds.index(type(stopped) if stopped else None))
            distributed.all_reduce(flag, distributed.ReduceOp.MAX, self._group)
            kind = kinds[int(flag)]
            if kind is not None and not isinstance(stopped, kind):
                stopped = kind(f"{attack.name} has no valid result on another process")
        if stopped is not None:
            raise stopped

    def _empty(self, count: int, attack: Attack) -> Attacked:
        x, _ = self._examples.take(torch.arange(1), torch.device("cpu"))
        inputs = x.new_zeros((count, *x.shape[1:])) if self._options.keep_inputs else None
        losses = None if self._task.answers_classes else torch.full((count,), -torch.inf)
        differed = None if self.model_for(attack) is self._model else torch.zeros(count, dtype=torch.int64)
        return Attacked(torch.full((count,), -1), inputs, losses, differed)

    def _unit(self, key: str, attack: Attack, number: int, positions: Tensor) -> Attacked:
        keep_inputs, model = self._options.keep_inputs, self.model_for(attack)
        key += "" if model is self._model else f".{self._options.copy_kind}"  # rounding decides some results
        stored = self._store.load(key, len(positions), keep_inputs)
        if stored is not None:
            return stored
        x, y = self._examples.take(positions, self._device)
        seed = mix(self._options.seed, attack.stream, number)
        outcome = self._attacked(model, attack, x, y, seed)
        if model is not self._model:
            assert outcome.inputs is not None
            with torch.no_grad():
                believed = model(outcome.inputs.to(self._device)).argmax(1) == y
            right = outcome.predictions == y.cpu()
            differed = believed.cpu() != right
            again = (differed & right).nonzero()[:, 0]  # broken on the copy only
            if len(again):
                outcome.put(again, self._attacked(self._model, attack, x[again], y[again], seed))
            outcome = outcome._replace(differed=differed.long())
        outcome = outcome if keep_inputs else outcome._replace(inputs=None)
        self._store.save(key, outcome)
        return outcome

    def _attacked(self, model: nn.Module, attack: Attack, x: Tensor, y: Tensor, seed: int) -> Attacked:
        """Attack `model`, and return what the model itself answers to the attacked inputs."""
        given = x.clone()
        with seeded(seed):  # for a model that draws random numbers
            with finite_gradients(model, attack.name):
                x_adv = attack(model, x, y, self._threat, seed)
            check_unchanged(given, x)
            check_attacked(attack.name, x, x_adv, self._threat)
            kept = x_adv.clone()
            with torch.no_grad():
                output = self._model(x_adv)
                predictions = answers_of(self._task, output, y).cpu()
                losses = None if self._task.answers_classes else self._task.loss_of(output, y, "none").cpu()
        check_unchanged(kept, x_adv)
        return Attacked(predictions, kept.cpu(), losses)


def chains(attack: Attack) -> list[tuple[Attack, ...]]:
    """Return the stages of an attack, each with all before it: parts attack what `clean` leaves correct."""
    if not attack.parts:
        return [(attack,)]
    members = (create("clean"), *attack.parts)
    return [members[:count] for count in range(2, len(members) + 1)]


def key_of(chain: tuple[Attack, ...], threat: Threat) -> str:
    """Return the name of a stage: the same attack after the same others is the same work."""
    identities = "".join(identity_of(attack, threat) for attack in chain)
    return f"{'+'.join(attack.name for attack in chain)}.{short_hash(identities.encode())}"
