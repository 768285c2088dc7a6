"""The model card, for people and in RobustBench's shape."""

from dataclasses import replace
from typing import Any

import torch

from sora import evaluate
from sora.attacks import create
from sora.evaluation import Evaluation
from sora.evaluation.card import ModelFacts, entry, markdown
from sora.threat import Linf

ROBUSTBENCH = (
    "link name authors additional_data number_forward_passes dataset venue architecture eps clean_acc"
    " reported autoattack_acc unreliable"
)
FACTS = ModelFacts("mine", "own:net", "digits", "...")


def evaluation(**wrong: int) -> Evaluation:
    labels = torch.arange(200) % 10
    predictions = {}
    for name, count in wrong.items():
        predictions[name] = labels.clone()
        predictions[name][:count] = (labels[:count] + 1) % 10
    threat = Linf("8/255")
    settings = {name: create(name).for_classes(10).settings(threat) for name in wrong}
    return Evaluation(threat, labels, 10, predictions, settings)


def card(facts: ModelFacts, result: Evaluation) -> tuple[dict[str, Any], str]:
    return entry(facts, [result]), markdown(facts, [result])


def notes(*evaluations: Evaluation) -> list[str]:
    lines = markdown(FACTS, evaluations).splitlines()
    return [line for line in lines if line.startswith("- ") and "AutoAttack" in line]


def test_notes_about_autoattack_know_every_version_and_belong_to_a_radius() -> None:
    for name in ("aa", "aa-plus", "aa-rand"):
        assert notes(evaluation(clean=1, **{name: 100})) == []
    (note,) = notes(evaluation(clean=1, **{"aa-reduced": 100}))
    assert "`aa-reduced` is AutoAttack without apgd-t, which is undefined for few classes" in note
    (note,) = notes(evaluation(clean=1, **{"aa-rand-reduced": 100}))
    assert "without apgd-dlr@eot20, which is" in note
    other = replace(evaluation(clean=1), threat=Linf("4/255"))
    assert notes(evaluation(clean=1, aa=100), other) == [
        "- linf 4/255: AutoAttack was not run: robust accuracy is an upper bound."
    ]
    assert len(notes(evaluation(clean=1), other)) == 1


def test_card_has_numbers_training_and_loading() -> None:
    training = {"method": "sora", "epochs": 30}
    network = {"name": "preactresnet18", "width": 4, "mean": None, "options": {"stages": 2}}
    facts = ModelFacts("mine", "preactresnet18", "cifar10", 'sora.load("a")', training, network=network)
    numbers, text = card(facts, evaluation(clean=30, fgsm=90, pgd10=100, aa=107))
    assert list(numbers)[:9] == ROBUSTBENCH.split()[:9]
    assert set(ROBUSTBENCH.split()) <= numbers.keys()
    assert (numbers["eps"], numbers["threat_model"]) == ("8/255", "Linf")
    assert (numbers["clean_acc"], numbers["autoattack_acc"], numbers["unreliable"]) == (
        "85.00",
        "46.50",
        False,
    )
    for words in (
        "| linf 8/255 | aa | 46.50 % | 39.72 - 53.41 | 200 |",
        "**worst case** | 46.50 %",
        "**robust**",
        "| epochs | `30` |",
        'sora.load("a")',
        "- Network: `preactresnet18`, width = 4, stages = 2.",
        "normalisation is its first layer",
    ):
        assert words in text


def test_card_states_what_is_missing_or_doubtful_and_versions_of_what_was_run() -> None:
    numbers, text = card(FACTS, evaluation(clean=30, fgsm=10, pgd10=190))
    assert (numbers["autoattack_acc"], numbers["unreliable"]) == ("", True)
    for words in ("AutoAttack was not run", "**overfitted**", "exceeds clean accuracy", "Unknown."):
        assert words in text
    assert "normalisation is its first layer" not in text  # it is custom code
    assert "module `own` must be importable" in text
    inputs = torch.rand(8, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(75, 5))
    result = evaluate(model, (inputs, torch.arange(8) % 5), Linf(0.05), "fgsm,apgd-ce")
    _, text = card(FACTS, result)
    lines = [line for line in text.splitlines() if line.startswith(("- fgsm:", "- apgd-ce:"))]
    assert ["pyautoattack" in line for line in lines] == [False, True]
    assert "pyautoattack" not in result.versions["fgsm"]
