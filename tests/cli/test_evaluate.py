"""`sora evaluate` from the outside: what it prints, what it writes, how it refuses."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sora.cli import main

torch.set_num_threads(1)

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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps: what is tested here does not depend on how good the model is."""
    folder = tmp_path_factory.mktemp("runs") / "a"
    flags = "--dataset digits --method fgsm --epochs 1 --batch-size 250 --width 4 --limit-test 60 --threads 1"
    assert main(["train", *flags.split(), "--holdout", "0", "--quiet", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's own and weights for its models."""
    (tmp_path / "own_answers.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    save_file({"weight": torch.ones(1)}, tmp_path / "own.safetensors")
    return tmp_path / "own.safetensors"


def evaluate(*arguments: object) -> int:
    return main(["evaluate", *map(str, arguments), "--quiet"])


def records(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return list(json.loads(capsys.readouterr().out))


def test_json_is_the_same_to_the_last_digit(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (copy, "--attacks", "clean,fgsm,pgd10,pgd20x2", "--json")
    assert evaluate(*arguments) == 0
    first = capsys.readouterr().out
    assert evaluate(*arguments) == 0
    assert capsys.readouterr().out == first
    (copy / "evaluation.json").unlink()
    assert evaluate(*arguments) == 0
    assert capsys.readouterr().out == first
    (record,) = json.loads(first)
    summary = json.loads((copy / "summary.json").read_text())
    assert {name: record["accuracy"][name] for name in summary["accuracy"]} == summary["accuracy"]
    assert record["attacks"]["pgd10"].items() >= summary["attacks"]["pgd10"].items()
    assert record["threat"] == summary["threat"]
    assert (record["method"], record["dataset"], record["model"]) == ("fgsm", "digits", "preactresnet18")


def test_several_radii_and_norms(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--eps", "0.05,0.1,l2:1.5", "--norms", "linf,l2", "--attacks", "clean,fgsm", "--limit", 40)
    assert evaluate(copy, *flags, "--json") == 0
    found = [(record["threat"]["norm"], record["threat"]["eps"]) for record in records(capsys)]
    assert found == [("linf", 0.05), ("l2", 0.05), ("linf", 0.1), ("l2", 0.1), ("l2", 1.5)]
    assert evaluate(copy, *flags) == 0
    text = capsys.readouterr().out
    assert "95 % interval" in text
    assert "n = 40 images of digits" in text


def test_tables_card_and_classes(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(copy, "--per-class", "--confusion", "fgsm", "--card") == 0
    text = capsys.readouterr().out
    for words in ("linf eps 0.15", "worst case", "accuracy by class", "under fgsm", "n = 60 images"):
        assert words in text
    card = json.loads((copy / "model_card.json").read_text())
    assert (card["dataset"], card["eps"], card["training"]["method"]) == ("digits", "0.15", "fgsm")
    assert 'sora.load("run")' in (copy / "model_card.md").read_text()
    assert evaluate(copy, "--card", "--out", copy / "elsewhere", "--json") == 0
    assert json.loads((copy / "elsewhere" / "model_card.json").read_text()) == card


def test_a_confusion_matrix_of_an_attack_that_is_not_run_is_refused_at_once(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sora.cli.evaluate.evaluate_into", None)  # any evaluation would fail
    assert evaluate(copy, "--attacks", "clean,fgsm", "--confusion", "pgd10") == 2
    assert "--confusion 'pgd10' is not among --attacks; allowed: clean, fgsm" in capsys.readouterr().err


def test_weights_from_elsewhere(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(shutil.copy(run / "model.safetensors", tmp_path / "w.safetensors"))
    flags = ("--weights", path, "--model", "preactresnet18", "--dataset", "digits", "--width", 4)
    assert evaluate(*flags, "--limit", 60, "--json", "--card") == 0
    (record,) = records(capsys)
    assert record["accuracy"] == json.loads((run / "summary.json").read_text())["accuracy"]
    card = (tmp_path / "w.safetensors-evaluation" / "model_card.md").read_text()
    assert (tmp_path / "w.safetensors-evaluation" / "evaluation.json").exists()
    assert card.startswith("# w.safetensors\n")
    assert "sora.models.create" in card
    torch.save(load_file(path), tmp_path / "w.pt")  # another file of that name without its ending
    assert evaluate("--weights", tmp_path / "w.pt", *flags[2:], "--limit", 40, "--card") == 0
    assert (tmp_path / "w.pt-evaluation" / "model_card.md").read_text().startswith("# w.pt\n")
    assert (tmp_path / "w.safetensors-evaluation" / "model_card.md").read_text() == card


def test_a_collapsed_model_is_warned_about(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--weights", own, "--model", "own_answers:constant", "--dataset", "digits", "--limit", 40)
    assert evaluate(*flags) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "no --eps was given: linf 0.15 is the default for digits" in text
    # Warnings come last, where they are seen.
    assert text.index("n = 40 images") < text.index("warning: ")
    assert text.endswith("evaluate the logits before them")
    assert "warning: the model predicts class 9 for everything" in text
    assert "input gradient of 100% of the examples" in text
    assert evaluate(*flags, "--attacks", "clean", "--eps", "0.1") == 0
    assert "default" not in capsys.readouterr().out  # the radius was given


def test_the_help_names_every_kind_of_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--help") == 0
    assert "a state dict written by torch.save" in " ".join(capsys.readouterr().out.replace("│", "").split())


BESIDE_A_FILE = ("--attacks aa", "--limit 5", "--limit 5 --first", "--seed 1", "--eps 0.1", "--norms l2")
BESIDE_A_FILE += ("--out y", "--trust", "--per-class", "--confusion clean")


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line with which a mistake is refused."""
    assert evaluate(*arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("sora: ")
    return lines[0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--eps 8/255,8/25x", "eps '8/25x' is not a number"),
        ("--eps 8/0", "eps '8/0' is not a number"),
        ("--eps=-0.1", "negative"),
        ("--eps l3:0.1", "unknown norm 'l3'"),
        ("--norms linf,l1", "unknown norm 'l1'"),
        ("--norms linf,l2", "--norms l2 requires --eps, e.g. --eps l2:0.5"),
        ("--model vit-small", "this run's model is preactresnet18, not 'vit-small'"),
        *[(f"--adversarial x.npz {f}", f"cannot be combined with {f.split()[0]}") for f in BESIDE_A_FILE],
        ("--attacks clean,pdg10", "did you mean 'pgd10'"),
        ("--attcks clean", "did you mean '--attacks'"),
        ("--limit 1000000", "1000000 were requested"),
        ("--batch-size 0", "batch size 0"),
        ("--dataset digts", "did you mean 'digits'"),
        ("--device gpu", "device 'gpu' is not available"),
        ("--width 8", "requires --weights"),
        ("--weights x.safetensors", "--weights needs --model and --dataset"),
    ],
)
def test_mistakes_are_one_line(
    copy: Path, capsys: pytest.CaptureFixture[str], flags: str, message: str
) -> None:
    assert evaluate(copy) == 0
    before = (copy / "evaluation.json").read_bytes()
    capsys.readouterr()
    assert message in refused(capsys, copy, *flags.split())
    assert (copy / "evaluation.json").read_bytes() == before


def test_a_missing_run_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "name a run folder" in refused(capsys)
    assert refused(capsys, tmp_path).endswith("it has no config.yaml")
    assert "there is no run" in (message := refused(capsys, run.parent))
    assert message.endswith("name one of the runs in it: a")


def test_weights_that_do_not_fit_are_explained(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = ("--model", "preactresnet18", "--dataset", "digits", "--width", 4)
    good = load_file(run / "model.safetensors")
    wrong = tmp_path / "w.safetensors"

    save_file({**good, "network.head.weight": torch.zeros(7, 8)}, wrong)
    found = refused(capsys, "--weights", wrong, *network)
    assert "'network.head.weight' is (7, 8) in the file" in found
    save_file({**good, "extra": torch.zeros(1)}, wrong)
    assert "'extra' is in the file, but not in the model" in refused(capsys, "--weights", wrong, *network)
    wrong.write_text("not weights")
    assert "is not a safetensors file" in refused(capsys, "--weights", wrong, *network)
    assert "does not exist" in refused(capsys, "--weights", tmp_path / "none.safetensors", *network)


class Trap:
    """Writes a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_a_pickle_is_not_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, sprung = tmp_path / "w.safetensors", tmp_path / "sprung"
    path.write_bytes(pickle.dumps({"weight": Trap(sprung)}))
    flags = ("--weights", path, "--model", "preactresnet18", "--dataset", "digits")
    assert "is not a safetensors file" in refused(capsys, *flags)
    assert not sprung.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("not_a_number", "NaN"), ("many", "the model has 120 classes, the data has 10")],
)
def test_models_that_cannot_be_judged(
    own: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    flags = ("--weights", own, "--model", f"own_answers:{name}", "--dataset", "digits")
    assert message in refused(capsys, *flags)
    assert not (own.parent / "own.safetensors-evaluation" / "evaluation.json").exists()
