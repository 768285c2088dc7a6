"""Whatever stands in the JSON files of a run, readers use it or refuse it in one line."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from sora.errors import RunError, UserError
from sora.experiments.compare import compare_finished, markdown
from sora.runs import RunFolder
from sora.training import train
from tests.training.conftest import BuildSettings

WRONG: tuple[Any, ...] = (None, 3, -1, "x", [], {}, True, [3], {"a": 3})


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value inside a JSON value; of lists the first element only."""
    yield here
    inside = (
        value.items() if isinstance(value, dict) else enumerate(value[:1] if isinstance(value, list) else ())
    )
    for key, part in inside:
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


@pytest.fixture
def run(settings: BuildSettings) -> RunFolder:
    given = settings("fgsm", epochs=1, limit_train=32, limit_test=8, attacks="clean,fgsm,pgd2")
    return train(given, quiet=True).folder


def use_or_refuse(run: RunFolder, name: str, *, share: int) -> dict[str, int]:
    """How often a file with a wrong value was used and refused; each place gets a share of the values."""
    good, outcomes = json.loads((run.path / name).read_text()), {"used": 0, "refused": 0}
    for record in good if isinstance(good, list) else ():
        record.pop("blake2b")  # as in files of older versions, which are not protected by a checksum
    for count, place in enumerate(places(good)):
        for new in WRONG[count % share :: share]:
            (run.path / name).write_text(json.dumps(changed(good, place, new)))
            try:
                markdown(compare_finished([run]))
                outcomes["used"] += 1
            except (RunError, UserError):
                outcomes["refused"] += 1
    return outcomes


@pytest.mark.parametrize("name", ["summary.json", "evaluation.json"])
def test_a_wrong_value_anywhere_is_used_or_refused(run: RunFolder, name: str) -> None:
    assert min(use_or_refuse(run, name, share=3).values()) > 30


@pytest.mark.slow
@pytest.mark.parametrize("name", ["summary.json", "evaluation.json"])
def test_every_wrong_value_anywhere_is_used_or_refused(run: RunFolder, name: str) -> None:
    assert min(use_or_refuse(run, name, share=1).values()) > 100


def test_the_error_names_the_place(run: RunFolder) -> None:
    run.evaluations.write_text('[{"fingerprint": 3, "threat": 3}]')
    with pytest.raises(RunError, match=r"evaluation.json is damaged .*fingerprint.*; move it away"):
        run.read_evaluations()
