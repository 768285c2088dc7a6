"""Weights to start from, a run that opens again, a figure of the result, several seeds of an attack."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sora
from sora.attacks import create_all
from sora.cli import main
from sora.errors import UserError
from sora.evaluation import EvaluationOptions
from sora.evaluation.records import evaluate_into
from sora.evaluation.units import AttackRunner
from sora.runs import RunFolder
from sora.runs.models import load_initial
from tests.training.test_fit import FAST, tensors


def ours(classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return sora.models.create("preactresnet18", classes, image_size=8, width=2, stages=1, mean=[0.5] * 3)


class Own(nn.Sequential):
    """Importable as tests.training.test_finetune:Own."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__(nn.Flatten(), nn.Linear(192, num_classes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("open")
    for name, model in (("ours", ours()), ("own", Own())):
        result = sora.fit(model, (tensors(), tensors(30)), out=path / name, quiet=True, **FAST)
        torch.save(model.state_dict(), path / f"{name}.pt")
        result.plot(path / f"{name}.png")
    return path


def assert_filled(model: nn.Module, path: Path) -> None:
    for name, tensor in torch.load(path).items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_a_run_of_fit_opens_again(folder: Path) -> None:
    assert_filled(sora.load(folder / "ours"), folder / "ours.pt")
    own = "tests.training.test_finetune:Own"
    for given in (Own(), own):
        assert_filled(sora.load(folder / "own", model=given), folder / "own.pt")
    with pytest.raises(UserError, match=f"model='{own}' to import it"):  # never because a file says so
        sora.load(folder / "own")
    changed = ours()
    changed[1].head = nn.Linear(changed[1].head.in_features, 5)
    assert sora.models.built_as(changed) is None
    assert sora.models.built_as(ours())["options"] == {"stages": 1}


def test_the_result_draws_itself(folder: Path, tmp_path: Path) -> None:
    assert (folder / "ours.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match=r"must end in one of \.pdf, \.svg, \.png"):
        sora.fit(Own(), (tensors(), tensors(30)), quiet=True, **FAST).plot(tmp_path / "a.txt")


def test_weights_with_other_classes_get_a_new_head_that_is_named(folder: Path, capsys: Any) -> None:
    weights, model = folder / "ours" / "model.safetensors", ours(4)
    before = model[1].head.weight.clone()
    sora.fit(model, (tensors(classes=4), tensors(40, 4)), init=str(weights), recipe="finetune", **FAST)
    assert "network.head has 3 outputs in" in capsys.readouterr().err
    assert model[1].head.weight.shape == before.shape
    with pytest.raises(UserError, match="do not match the model"):
        sora.fit(
            ours().append(nn.Linear(3, 3)), (tensors(), tensors(30)), init=str(weights), quiet=True, **FAST
        )


def digits(classes: tuple[str, ...]) -> sora.data.Dataset:
    x, y = tensors(40, len(classes))
    images = sora.data.ImageSet(x.permute(0, 2, 3, 1).contiguous(), y)
    return sora.data.Dataset("named", images, images, None, classes)


@pytest.mark.parametrize("other", [False, True])
def test_other_classes_of_the_same_number_get_a_new_head(tmp_path: Path, other: bool, capsys: Any) -> None:
    sora.fit(ours(), digits(("a", "b", "c")), out=tmp_path / "first", quiet=True, **FAST)
    model = ours()
    fresh = model[1].head.weight.clone()
    for init in (tmp_path / "first", tmp_path / "first" / "model.safetensors"):
        said = load_initial(model, str(init), ["d", "e", "f"] if other else ["a", "b", "c"])
        assert said == (f"{tmp_path}/first/model.safetensors was trained for other classes: "
                        "network.head is a new head" if other else "")  # fmt: skip
        assert torch.equal(model[1].head.weight, fresh) == other
        trained = sora.load(tmp_path / "first")
        assert torch.equal(model[1].state_dict()["stem.weight"], trained[1].state_dict()["stem.weight"])
    new = digits(("d", "e", "f"))
    sora.fit(ours(), new, init=str(tmp_path / "first"), recipe="finetune", **FAST)
    assert "trained for other classes" in capsys.readouterr().err


def test_seeds_of_an_attack_are_repeated_and_stated() -> None:
    x, y = torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    torch.manual_seed(0)
    model, threat = Own(), sora.Linf(0.05)
    single = [sora.evaluate(model, (x, y), threat, "pgd1", seed=seed).accuracy["pgd1"] for seed in (3, 4, 5)]
    found = sora.evaluate(model, (x, y), threat, "pgd1,fgsm", seed=3, attack_seeds=3)
    attack = found.attacks["pgd1"]
    assert (attack["seed"], attack["start"], found.attacks["fgsm"]["start"]) == (3, "random", "input")
    assert found.accuracy["pgd1"] == single[0]
    spread = {"n": 3, "min": min(single), "mean": sum(single) / 3, "max": max(single)}
    assert attack["seeds"] == pytest.approx(spread)
    with pytest.raises(UserError, match="attack seeds 0; expected 1 or more"):
        sora.evaluate(model, (x, y), threat, "pgd1", attack_seeds=0)


def test_seeds_that_are_done_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, threat = torch.rand(12, 3, 8, 8), torch.arange(12) % 3, sora.Linf(0.05)
    model, used, attacked = Own(), list[int](), AttackRunner._attacked

    def until(limit: int) -> Any:
        def counted(self: Any, *given: Any) -> Any:
            if len(used) == limit:
                raise KeyboardInterrupt
            used.append(given[-1])
            return attacked(self, *given)

        return counted

    given = (RunFolder(tmp_path), model, (x, y), [threat], create_all("pgd1"))
    options = EvaluationOptions(attack_seeds=3, batch_size=6)
    monkeypatch.setattr(AttackRunner, "_attacked", until(3))  # in the middle of the second seed
    with pytest.raises(KeyboardInterrupt):
        evaluate_into(*given, options)
    monkeypatch.setattr(AttackRunner, "_attacked", until(99))
    (found,) = evaluate_into(*given, options)
    assert len(used) == len(set(used)) == 6
    plain = sora.evaluate(model, (x, y), threat, "pgd1", attack_seeds=3, batch_size=6)
    assert found.attacks["pgd1"]["seeds"] == plain.attacks["pgd1"]["seeds"]
    assert not (tmp_path / "evaluation-state").exists()


def test_the_command_prints_the_spread(folder: Path, tmp_path: Path, capsys: Any) -> None:
    torch.manual_seed(0)
    model = sora.models.create("preactresnet18", 10, in_channels=1, image_size=16, width=2, stages=1)
    torch.save(model.state_dict(), tmp_path / "w.pt")
    command = [
        "evaluate",
        "--weights",
        str(tmp_path / "w.pt"),
        "--model",
        "preactresnet18",
        "--dataset",
        "digits",
    ]
    command += ["--set", "model.stages=1", "--width", "2", "--limit", "20", "--attacks", "pgd1", "--quiet"]
    assert main(command) == 0
    assert "pgd1: random start, seed 0" in capsys.readouterr().out
    assert main([*command, "--attack-seeds", "2", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["attacks"]["pgd1"]["seeds"]["n"] == 2
    assert main([*command, "--attack-seeds", "2"]) == 0
    assert "over the 2 seeds from 0 on: min" in " ".join(capsys.readouterr().out.split())
