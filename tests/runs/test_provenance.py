"""What is recorded beside every number."""

import dataclasses

import torch

from sora.data import Dataset, ImageSet
from sora.runs.records import describe_data, machine, machine_line, versions
from sora.runs.resume import settings_hash
from sora.settings import Settings


def test_the_hash_follows_what_decides_the_numbers(settings) -> None:
    one = settings()
    assert settings_hash(one) == settings_hash(dataclasses.replace(one, out="elsewhere", threads=7))
    assert settings_hash(one) != settings_hash(dataclasses.replace(one, seed=1))
    assert settings_hash(one) != settings_hash(settings(set={"sora.beta": 0.1}))


def test_settings_added_later_leave_the_hash_of_older_runs_as_it_was(settings) -> None:
    assert settings_hash(Settings()) == "46cb9bc2cb536e3b"  # as before label smoothing and --keep
    changes = ({"keep": "best"}, {"keep": "best-robust"}, {"smoothing": 0.1}, {"smooth_attack": False})
    assert len({settings_hash(settings(**change)) for change in ({}, *changes)}) == 5


def test_versions_name_the_code(settings) -> None:
    found = versions()
    assert found["torch"] == torch.__version__
    assert set(found) >= {"sora", "commit", "python", "numpy"}
    assert found["commit"] is None or len(found["commit"].removesuffix("-dirty")) >= 7


def test_the_machine_in_one_line() -> None:
    torch.set_num_threads(1)
    facts = machine("cpu")
    assert facts["gpu"] is None
    assert machine_line(facts) == f"{facts['cpu']}, 1 thread"
    assert machine_line(facts | {"gpu": "a GPU", "threads": 4}) == "a GPU, 4 threads"


def test_a_data_set_that_is_stored_larger_than_it_is_tested_says_so() -> None:
    images = ImageSet(torch.zeros(4, 12, 12, 3, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]))
    facts = describe_data(Dataset("large", images, images.center(8, 8), None, ("a", "b")))
    assert (facts["image_size"], facts["stored_size"]) == ([8, 8], [12, 12])
