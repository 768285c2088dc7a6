"""The unit of work is (attack, batch): done once, saved at once, by whichever process it falls to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from sora._files import write_text
from sora._seeds import mix
from sora.attacks import Attack, create
from sora.evaluation._checks import predicted
from sora.evaluation._examples import Examples
from sora.evaluation._progress import Meter
from sora.threat import Threat

PATIENCE = timedelta(days=30)


class UnitStore:
    """Predictions of finished units, a small file each: it is there in full or the unit is not done."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def load(self, key: str, count: int) -> Tensor | None:
        """The unit's predictions; None if it is not done or its file is not whole."""
        if self._folder is None:
            return None
        try:
            values = torch.tensor(json.loads((self._folder / f"{key}.json").read_text()), dtype=torch.long)
        except (OSError, ValueError, TypeError):
            return None
        return values if values.shape == (count,) else None

    def save(self, key: str, predictions: Tensor) -> None:
        """Keep a unit's predictions."""
        if self._folder is not None:
            write_text(self._folder / f"{key}.json", json.dumps(predictions.tolist()))


class Judge:
    """Runs attacks on one model and one list of examples, unit by unit.

    Attacks with parts start from what the model gets right, and each part from what the parts before left:
    a list that is frozen when the part begins, so its batches and their seeds are the same in every run.
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
        # A rank may wait for hours for another one's last unit, which the default group does not allow.
        self._group = distributed.new_group(timeout=PATIENCE, backend="gloo") if shard else None
        self._done: dict[str, Tensor] = {}

    def run(self, attacks: Sequence[Attack]) -> dict[str, Tensor]:
        """The model's predictions under each attack, by name."""
        for attack in attacks:
            for chain in chains(attack):
                self._meter.plan(key_of(chain), chain[-1].passes * len(self._examples.labels) // self._world)
        return {attack.name: self._under(attack) for attack in attacks}

    def _under(self, attack: Attack) -> Tensor:
        labels = self._examples.labels
        everything = torch.arange(len(labels))
        if not attack.parts:
            return self._stage((attack,), everything)
        found = self._stage((create("clean"),), everything).clone()
        for chain in chains(attack):
            left = (found == labels).nonzero()[:, 0]
            found[left] = self._stage(chain, left)
        return found

    def _stage(self, chain: tuple[Attack, ...], positions: Tensor) -> Tensor:
        """Predictions under the last attack of a chain, for what the chain has left."""
        key, attack = key_of(chain), chain[-1]
        if key in self._done:
            return self._done[key]
        batches = torch.split(positions, self._batch_size) if len(positions) else ()
        mine = range(self._rank, len(batches), self._world)
        self._meter.plan(key, attack.passes * sum(len(batches[number]) for number in mine))
        found = torch.full((len(positions),), -1)
        for number in mine:
            start = number * self._batch_size
            title = f"{attack.name}, batch {number + 1} of {len(batches)}"
            with self._meter.unit(title, attack.passes * len(batches[number])):
                unit = self._unit(f"{key}.{number}", attack, number, batches[number])
                found[start : start + len(unit)] = unit
        if self._group is not None:
            distributed.all_reduce(found, distributed.ReduceOp.MAX, self._group)  # others' units are -1 here
        self._done[key] = found
        return found

    def _unit(self, key: str, attack: Attack, number: int, positions: Tensor) -> Tensor:
        known = self._store.load(key, len(positions))
        if known is not None:
            return known
        x, y = self._examples.take(positions, self._device)
        x_adv = attack(self._model, x, y, self._threat, mix(self._seed, attack.stream, number))
        with torch.no_grad():
            answer = predicted(self._model(x_adv)).cpu()
        self._store.save(key, answer)
        return answer


def chains(attack: Attack) -> list[tuple[Attack, ...]]:
    """The stages of an attack, each with the parts that came before it."""
    members = attack.parts or (attack,)
    return [members[: count + 1] for count in range(len(members))]


def key_of(chain: tuple[Attack, ...]) -> str:
    """Names a stage: the same attack after the same others is the same work."""
    return "+".join(attack.name for attack in chain)
