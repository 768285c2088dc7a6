"""`sora evaluate` from the outside: what it prints, what it writes, how it refuses."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.data.formats import Evil

NETWORK = ("--model", "preactresnet18", "--dataset", "digits", "--width", 4, "--set", "model.stages=1")

OWN = """
import torch
from torch import nn

class Answer(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.weight, self.answer = nn.Parameter(torch.ones(1)), answer

    def forward(self, x):
        return self.answer(self.weight * x.flatten(1))

def constant():
    return Answer(lambda z: z[:, :10] * 0 + torch.arange(10.0))

def not_a_number():
    return Answer(lambda z: z[:, :10] * torch.nan)

def many():
    return Answer(lambda z: z[:, 60:180])
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's own and weights for its models."""
    (tmp_path / "own_answers.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    save_file({"weight": torch.ones(1)}, tmp_path / "own.safetensors")
    return tmp_path / "own.safetensors"


def test_json_is_the_same_to_the_last_digit(sora, run) -> None:
    arguments = ("evaluate", run, "--attacks", "clean,fgsm,pgd10,pgd20x2", "--quiet", "--json")
    first = sora(*arguments).out
    assert sora(*arguments).out == first
    (run / "evaluation.json").unlink()
    assert sora(*arguments).out == first
    (record,) = json.loads(first)
    summary = json.loads((run / "summary.json").read_text())
    assert {name: record["accuracy"][name] for name in summary["accuracy"]} == summary["accuracy"]
    assert record["attacks"]["pgd10"].items() >= summary["attacks"]["pgd10"].items()
    assert record["threat"] == summary["threat"]
    assert (record["method"], record["dataset"], record["model"]) == ("sora", "digits", "preactresnet18")


def test_several_radii_and_norms(sora, run) -> None:
    flags = ("--eps", "0.05,0.1,l2:1.5", "--norms", "linf,l2", "--attacks", "clean,fgsm", "--limit", 30)
    records = sora.json("evaluate", run, *flags, "--quiet")
    found = [(record["threat"]["norm"], record["threat"]["eps"]) for record in records]
    assert found == [("linf", 0.05), ("l2", 0.05), ("linf", 0.1), ("l2", 0.1), ("l2", 1.5)]
    text = sora("evaluate", run, *flags, "--quiet").out
    assert "95 % interval" in text
    assert "n = 30 images of digits" in text


def test_tables_card_and_classes(sora, run) -> None:
    text = sora("evaluate", run, "--per-class", "--confusion", "fgsm", "--card", "--quiet").out
    for words in ("linf eps 0.15", "worst case", "accuracy by class", "under fgsm", "n = 40 images"):
        assert words in text
    card = json.loads((run / "model_card.json").read_text())
    assert (card["dataset"], card["eps"], card["training"]["method"]) == ("digits", "0.15", "sora")
    assert 'sora.load("a")' in (run / "model_card.md").read_text()
    sora("evaluate", run, "--card", "--out", run / "elsewhere", "--json")
    assert json.loads((run / "elsewhere" / "model_card.json").read_text()) == card


def test_a_confusion_matrix_of_an_attack_that_is_not_run_is_refused_at_once(sora, run, monkeypatch) -> None:
    monkeypatch.setattr("sora.cli.evaluate.evaluate_into", None)  # any evaluation would fail
    message = "--confusion 'pgd10' is not among --attacks; allowed: clean, fgsm"
    sora.refuse(message, "evaluate", run, "--attacks", "clean,fgsm", "--confusion", "pgd10")


def test_weights_from_elsewhere(sora, run, tmp_path) -> None:
    path = Path(shutil.copy(run / "model.safetensors", tmp_path / "w.safetensors"))
    (record,) = sora.json("evaluate", "--weights", path, *NETWORK, "--limit", 40, "--card", "--quiet")
    assert record["accuracy"] == json.loads((run / "summary.json").read_text())["accuracy"]
    card = (tmp_path / "w.safetensors-evaluation" / "model_card.md").read_text()
    assert (tmp_path / "w.safetensors-evaluation" / "evaluation.json").exists()
    assert card.startswith("# w.safetensors\n")
    assert "sora.models.create" in card
    torch.save(load_file(path), tmp_path / "w.pt")  # another file of that name without its ending
    sora("evaluate", "--weights", tmp_path / "w.pt", *NETWORK, "--limit", 30, "--card", "--quiet")
    assert (tmp_path / "w.pt-evaluation" / "model_card.md").read_text().startswith("# w.pt\n")
    assert (tmp_path / "w.safetensors-evaluation" / "model_card.md").read_text() == card


def test_a_collapsed_model_is_warned_about(sora, own) -> None:
    flags = ("--weights", own, "--model", "own_answers:constant", "--dataset", "digits", "--limit", 40)
    text = " ".join(sora("evaluate", *flags, "--quiet").out.split())
    assert "no --eps was given: linf 0.15 is the default for digits" in text
    # Warnings come last, where they are seen.
    assert text.index("n = 40 images") < text.index("warning: ")
    assert text.endswith("evaluate the logits before them")
    assert "warning: the model predicts class 9 for everything" in text
    assert "input gradient of 100% of the examples" in text
    given = sora("evaluate", *flags, "--attacks", "clean", "--eps", "0.1", "--quiet")
    assert "default" not in given.out  # the radius was given


def test_the_help_names_every_kind_of_weights(sora) -> None:
    text = " ".join(sora("evaluate", "--help").out.replace("│", "").split())
    assert "a state dict written by torch.save" in text


def test_a_missing_run_is_named(sora, run, tmp_path) -> None:
    assert sora.refuse("", "evaluate", run / "checkpoints").endswith("it has no config.yaml\n")
    message = sora.refuse("there is no run", "evaluate", tmp_path)
    assert message.endswith("name one of the runs in it: a\n")


def test_weights_that_do_not_fit_are_explained_and_a_pickle_is_not_opened(sora, run, tmp_path) -> None:
    good, wrong = load_file(run / "model.safetensors"), tmp_path / "w.safetensors"
    command = ("evaluate", "--weights", wrong, *NETWORK)
    sora.refuse("w.safetensors' does not exist", *command)
    save_file({**good, "network.head.weight": torch.zeros(7, 8)}, wrong)
    sora.refuse("'network.head.weight' is (7, 8) in the file", *command)
    save_file({**good, "extra": torch.zeros(1)}, wrong)
    sora.refuse("'extra' is in the file, but not in the model", *command)
    wrong.write_text("not weights")
    sora.refuse("is not a safetensors file", *command)
    wrong.write_bytes(pickle.dumps({"weight": Evil(tmp_path / "sprung")}))
    sora.refuse("is not a safetensors file", *command)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("not_a_number", "NaN"), ("many", "the model has 120 classes, the data has 10")],
)
def test_models_that_cannot_be_judged(sora, own, name, message) -> None:
    flags = ("--weights", own, "--model", f"own_answers:{name}", "--dataset", "digits")
    sora.refuse(message, "evaluate", *flags)
    assert not (own.parent / "own.safetensors-evaluation" / "evaluation.json").exists()
