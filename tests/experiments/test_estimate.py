"""Estimates of the time that a grid takes."""

from sora.attacks import create
from sora.experiments.estimate import passes_of


def test_autoattack_counts_the_passes_of_all_its_parts() -> None:
    single = passes_of(create("apgd-ce"), 10)
    assert passes_of(create("aa"), 10) > 5 * single
    assert passes_of(create("pgd10"), 10) >= 10
