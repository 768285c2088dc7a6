"""Which images fall."""

from __future__ import annotations

from sora.probes import ProbedModel, create

from .toys import THREAT, images, smooth


def test_images_are_named_by_their_position_in_the_set_they_were_chosen_from() -> None:
    model, (x, _) = smooth(), images(40)
    pair = x, model(x).argmax(1)  # all are correct
    own = create("fallen").measure(ProbedModel(model, pair, THREAT))["fallen"]
    assert own
    there = [3 * number + 1 for number in range(40)]
    chosen = create("fallen").measure(ProbedModel(model, pair, THREAT, positions=there))["fallen"]
    assert [entry["image"] for entry in chosen] == [3 * entry["image"] + 1 for entry in own]
    assert [entry["label"] for entry in own] == [int(pair[1][entry["image"]]) for entry in own]
