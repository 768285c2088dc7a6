"""The paper's lemmas on a smooth network."""

from __future__ import annotations

import pytest

from sora.threat import L2, Threat

from .toys import THREAT, images, measure, smooth


@pytest.mark.parametrize("threat", [THREAT, L2(0.5)])
def test_both_lemmas_hold_on_a_smooth_network(threat: Threat) -> None:
    lemma = measure("curvature", smooth(), images(20), threat)["lemma"]
    assert lemma[-1]["step"] == threat.eps / 4096
    assert lemma[-1]["misalignment"] == pytest.approx([1, 1, 1], abs=0.01)
    assert lemma[-1]["bend"] == pytest.approx([1, 1, 1], abs=0.01)
    errors = [abs(row["misalignment"][1] - 1) for row in lemma]
    assert errors[-1] < errors[0]  # less accurate for long steps


def test_the_metrics_are_those_of_the_batch() -> None:
    values = measure("curvature", smooth(), images())["numbers"]
    assert set(values) == {"pertalign", "gradalign", "linearity", "altpertalign"}
    assert 0.5 < values["pertalign"] <= 1
