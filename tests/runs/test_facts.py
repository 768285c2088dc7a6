"""What is recorded beside every number, and what readers do with a record of unknown origin."""

import copy
import dataclasses
import json
import math
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import torch

from sora.data import Dataset, ImageSet
from sora.errors import RunError, UserError
from sora.experiments.compare import compare, markdown
from sora.runs import RunFolder
from sora.runs.facts import describe_data, machine, machine_line, versions
from sora.runs.resume import settings_hash
from sora.settings import Settings
from tests.training.helpers import BuildSettings

WRONG: tuple[Any, ...] = (None, 3, -1, "x", [], {}, True, [3], {"a": 3}, math.nan)


def test_the_hash_follows_what_decides_the_numbers(settings: BuildSettings) -> None:
    one = settings()
    assert settings_hash(one) == settings_hash(dataclasses.replace(one, out="elsewhere", threads=7))
    assert settings_hash(Settings()) == "46cb9bc2cb536e3b"  # as before label smoothing and --keep
    changes = ({"keep": "best"}, {"keep": "best-robust"}, {"smoothing": 0.1}, {"smooth_attack": False})
    changes += ({"seed": 1}, {"set": {"sora.beta": 0.1}})
    assert len({settings_hash(settings(**change)) for change in ({}, *changes)}) == 7


def test_versions_machine_and_sizes_of_data_belong_to_a_result() -> None:
    found = versions()
    assert found["torch"] == version("torch")
    assert set(found) >= {"sora", "commit", "python", "numpy"}
    assert found["commit"] is None or len(found["commit"].removesuffix("-dirty")) >= 7
    torch.set_num_threads(1)
    facts = machine("cpu")
    assert facts["gpu"] is None
    assert machine_line(facts) == f"{facts['cpu']}, 1 thread"
    assert machine_line(facts | {"gpu": "a GPU", "threads": 4}) == "a GPU, 4 threads"
    images = ImageSet(torch.zeros(4, 12, 12, 3, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    facts = describe_data(Dataset("large", images, images.center(8, 8), None, ("a", "b")))
    assert (facts["image_size"], facts["stored_size"]) == ([8, 8], [12, 12])


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value inside a JSON value; of lists the first element only."""
    yield here
    parts = value.items() if isinstance(value, dict) else ()
    for key, part in enumerate(value[:1]) if isinstance(value, list) else parts:
        yield from places(part, (*here, key))


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at one place."""
    if not place:
        return new
    value = copy.deepcopy(value)
    part = value
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = new
    return value


def use_or_refuse(run: RunFolder, name: str, *, share: int) -> dict[str, int]:
    """How often a file with a wrong value was used and refused; each place gets a share of the values."""
    good, outcomes = json.loads((run.path / name).read_text()), {"used": 0, "refused": 0}
    for record in good if isinstance(good, list) else [good]:
        record.pop("blake2b")  # which would give every change away
    for count, place in enumerate(places(good)):
        for new in WRONG[count % share :: share]:
            (run.path / name).write_text(json.dumps(changed(good, place, new)))
            try:
                markdown(compare(run.path))
                outcomes["used"] += 1
            except (RunError, UserError):
                outcomes["refused"] += 1
    return outcomes


@pytest.mark.parametrize("share", [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["summary.json", "evaluation.json"])
def test_a_wrong_value_anywhere_is_used_or_refused(name: str, share: int, whole: Settings) -> None:
    assert min(use_or_refuse(RunFolder(whole.folder()), name, share=share).values()) > 100 // share


def test_the_error_names_the_place(whole: Settings) -> None:
    run = RunFolder(whole.folder())
    run.evaluations.write_text('[{"fingerprint": 3, "threat": 3}]')
    with pytest.raises(RunError, match=r"evaluation.json is damaged .*fingerprint.*; move it away"):
        run.read_evaluations()
