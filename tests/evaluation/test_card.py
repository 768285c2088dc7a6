"""The model card, for people and in RobustBench's shape."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from sora import evaluate
from sora.attacks import create
from sora.evaluation import Evaluation
from sora.evaluation.card import ModelFacts, markdown, write_card
from sora.runs import RunFolder
from sora.threat import Linf

ROBUSTBENCH = (
    "link name authors additional_data number_forward_passes dataset venue architecture eps clean_acc"
    " reported autoattack_acc unreliable"
)


def evaluation(**wrong: int) -> Evaluation:
    labels = torch.arange(200) % 10
    predictions = {}
    for name, count in wrong.items():
        predictions[name] = labels.clone()
        predictions[name][:count] = (labels[:count] + 1) % 10
    threat = Linf("8/255")
    settings = {name: create(name).for_classes(10).settings(threat) for name in wrong}
    return Evaluation(threat, labels, 10, predictions, settings)


def notes(*evaluations: Evaluation) -> list[str]:
    text = markdown(ModelFacts("mine", "own:net", "digits", "..."), evaluations)
    return [line for line in text.splitlines() if line.startswith("- ") and "AutoAttack" in line]


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


def test_card_has_numbers_training_and_loading(tmp_path: Path) -> None:
    training = {"method": "sora", "epochs": 30}
    facts = ModelFacts("mine", "preactresnet18", "cifar10", 'sora.load("a")', training)
    write_card(RunFolder(tmp_path), facts, [evaluation(clean=30, fgsm=90, pgd10=100, aa=107)])
    card = json.loads((tmp_path / "model_card.json").read_text())
    assert list(card)[:9] == ROBUSTBENCH.split()[:9]
    assert set(ROBUSTBENCH.split()) <= card.keys()
    assert (card["eps"], card["threat_model"]) == ("8/255", "Linf")
    assert (card["clean_acc"], card["autoattack_acc"], card["unreliable"]) == ("85.00", "46.50", False)
    text = (tmp_path / "model_card.md").read_text()
    assert "| linf 8/255 | aa | 46.50 % | 39.72 - 53.41 | 200 |" in text
    assert "**worst case** | 46.50 %" in text
    assert "**robust**" in text
    assert "| epochs | `30` |" in text
    assert 'sora.load("a")' in text


def test_card_states_what_is_missing_and_what_is_doubtful(tmp_path: Path) -> None:
    write_card(
        RunFolder(tmp_path),
        ModelFacts("mine", "own:net", "digits", "..."),
        [evaluation(clean=30, fgsm=10, pgd10=190)],
    )
    card = json.loads((tmp_path / "model_card.json").read_text())
    assert (card["autoattack_acc"], card["unreliable"]) == ("", True)
    text = (tmp_path / "model_card.md").read_text()
    assert "AutoAttack was not run" in text
    assert "**overfitted**" in text
    assert "exceeds clean accuracy" in text
    assert "Unknown." in text


def test_nothing_is_said_about_the_normalisation_of_custom_code(tmp_path: Path) -> None:
    texts = {}
    for name in ("preactresnet18", "my_nets:Net"):
        write_card(RunFolder(tmp_path), ModelFacts("mine", name, "digits", "..."), [evaluation(clean=30)])
        texts[name] = (tmp_path / "model_card.md").read_text()
    assert "normalisation is its first layer" in texts["preactresnet18"]
    assert "normalisation is its first layer" not in texts["my_nets:Net"]
    assert "module `my_nets` must be importable" in texts["my_nets:Net"]


def test_the_network_is_written_for_people(tmp_path: Path) -> None:
    network = {"name": "preactresnet18", "width": 4, "mean": None, "options": {"stages": 2}}
    facts = ModelFacts("mine", "preactresnet18", "digits", "...", network=network)
    write_card(RunFolder(tmp_path), facts, [evaluation(clean=30)])
    text = (tmp_path / "model_card.md").read_text()
    assert "- Network: `preactresnet18`, width = 4, stages = 2." in text


def test_only_attacks_that_run_a_package_name_its_version(tmp_path: Path) -> None:
    inputs = torch.rand(8, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(75, 5))
    result = evaluate(model, (inputs, torch.arange(8) % 5), Linf(0.05), "fgsm,apgd-ce")
    write_card(RunFolder(tmp_path), ModelFacts("mine", "own:net", "toy", "..."), [result])
    lines = (tmp_path / "model_card.md").read_text().splitlines()
    assert ["pyautoattack" in line for line in lines if line.startswith(("- fgsm:", "- apgd-ce:"))] == [
        False,
        True,
    ]
    assert "pyautoattack" not in result.versions["fgsm"]
