"""Attacks run in units of (attack, batch): each is done once, saved at once, by whichever process gets it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from sora._files import make_folder, write_text
from sora._seeds import mix
from sora.attacks import Attack, create
from sora.evaluation._checks import predicted_classes
from sora.evaluation.examples import Examples
from sora.evaluation.progress import Meter
from sora.threat import Threat

TIMEOUT = timedelta(days=30)


class UnitStore:
    """Predictions of finished units, one small file each; a unit without a complete file is not done.

    Args:
        folder: Where the files are; nothing is stored if not given.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None:
            make_folder(folder.parent)
            make_folder(folder)

    def load(self, key: str, count: int) -> Tensor | None:
        """The unit's predictions; None if it is not done or its file is incomplete."""
        if self._folder is None:
            return None
        try:
            values = torch.tensor(json.loads((self._folder / f"{key}.json").read_text()), dtype=torch.long)
        except (OSError, ValueError, TypeError):
            return None
        return values if values.shape == (count,) else None

    def save(self, key: str, predictions: Tensor) -> None:
        """Store a unit's predictions."""
        if self._folder is not None:
            write_text(self._folder / f"{key}.json", json.dumps(predictions.tolist()))


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
        *,
        batch_size: int,
        seed: int,
        store: UnitStore,
        meter: Meter,
        shard: bool,
    ) -> None:
        self._model, self._examples, self._threat, self._device = model, examples, threat, device
        self._batch_size, self._seed = batch_size, seed
        self._store, self._meter = store, meter
        self._rank, self._world = (distributed.get_rank(), distributed.get_world_size()) if shard else (0, 1)
        # A rank may wait for hours for the last unit of another; the default group would time out.
        self._group = distributed.new_group(timeout=TIMEOUT, backend="gloo") if shard else None
        self._finished: dict[str, Tensor] = {}

    def run(self, attacks: Sequence[Attack]) -> dict[str, Tensor]:
        """The model's predictions under each attack, by name."""
        for attack in attacks:
            for chain in chains(attack):
                passes = chain[-1].passes * len(self._examples.labels) // self._world
                self._meter.plan(key_of(chain), passes)
        return {attack.name: self._predictions_under(attack) for attack in attacks}

    def _predictions_under(self, attack: Attack) -> Tensor:
        labels = self._examples.labels
        everything = torch.arange(len(labels))
        if not attack.parts:
            return self._stage((attack,), everything)
        predictions = self._stage((create("clean"),), everything).clone()
        for chain in chains(attack):
            remaining = (predictions == labels).nonzero()[:, 0]
            predictions[remaining] = self._stage(chain, remaining)
        return predictions

    def _stage(self, chain: tuple[Attack, ...], positions: Tensor) -> Tensor:
        """Predictions under the last attack of a chain, for the examples that the chain left."""
        key, attack = key_of(chain), chain[-1]
        if key in self._finished:
            return self._finished[key]
        batches = torch.split(positions, self._batch_size) if len(positions) else ()
        own = range(self._rank, len(batches), self._world)
        self._meter.plan(key, attack.passes * sum(len(batches[number]) for number in own))
        predictions = torch.full((len(positions),), -1)
        for number in own:
            start = number * self._batch_size
            title = f"{attack.name}, batch {number + 1} of {len(batches)}"
            with self._meter.unit(title, attack.passes * len(batches[number])):
                unit = self._unit(f"{key}.{number}", attack, number, batches[number])
                predictions[start : start + len(unit)] = unit
        if self._group is not None:  # units of other ranks are -1 here
            distributed.all_reduce(predictions, distributed.ReduceOp.MAX, self._group)
        self._finished[key] = predictions
        return predictions

    def _unit(self, key: str, attack: Attack, number: int, positions: Tensor) -> Tensor:
        stored = self._store.load(key, len(positions))
        if stored is not None:
            return stored
        x, y = self._examples.take(positions, self._device)
        x_adv = attack(self._model, x, y, self._threat, mix(self._seed, attack.stream, number))
        with torch.no_grad():
            predictions = predicted_classes(self._model(x_adv)).cpu()
        self._store.save(key, predictions)
        return predictions


def chains(attack: Attack) -> list[tuple[Attack, ...]]:
    """The stages of an attack, each with the parts that came before it."""
    members = attack.parts or (attack,)
    return [members[: count + 1] for count in range(len(members))]


def key_of(chain: tuple[Attack, ...]) -> str:
    """The name of a stage: the same attack after the same others is the same work."""
    return "+".join(attack.name for attack in chain)
