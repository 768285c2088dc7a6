"""The models that come with the package: the same logits everywhere, measured, described, not written to."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

import sora
from sora.cli import main
from sora.errors import UserError
from sora.evaluation.subject import select_test_images
from sora.runs import RunFolder, find_runs, zoo
from sora.runs.weights import read_verified

MODELS = [zoo.PREFIX + name for name in zoo.names()]
SIZE = 12_000_000  # bytes of all together


def facts(model: str) -> dict:
    return json.loads(zoo.card(model, ".json"))


def test_what_is_in_it() -> None:
    assert {"zoo:digits-fgsm", "zoo:digits-sora"} <= {*MODELS}
    folder = RunFolder(MODELS[0]).path.parent
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < SIZE
    assert not any(file.suffix in (".npz", ".npy", ".png", ".pt") for file in files)  # no images, no pickles
    for file in (file for file in files if file.suffix != ".safetensors"):
        assert not re.search(r'[:"] ?/\w', file.read_text())  # a path of the machine it was trained on


@pytest.mark.parametrize("model", MODELS)
def test_logits_of_images_from_a_seed(model: str) -> None:
    folder, loaded = RunFolder(model), sora.load(model)
    about = folder.read_model()
    shape = (32, about["in_channels"], about["image_size"], about["image_size"])
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    stored = read_verified(folder.path / "logits.safetensors").tensors["logits"]
    with torch.no_grad():
        found = loaded(images)
    assert (found - stored).abs().max() <= 1e-3 * stored.abs().max()


@pytest.mark.parametrize("model", MODELS)
def test_card(model: str) -> None:
    card, text = facts(model), zoo.card(model)
    (measured,) = card["evaluations"]
    assert {"clean", "fgsm", "pgd10", "pgd50x10", "aa"} == measured["accuracy"].keys()
    for name, attack in measured["attacks"].items():
        assert attack["low"] <= measured["accuracy"][name] <= attack["high"]
        assert attack["n"] >= 200
    command, evaluation = map(shlex.split, card["commands"])
    assert main([*command[1:], "--dry-run"]) == 0
    assert evaluation[:3] == ["sora", "evaluate", model]
    assert all(part in text for part in (*card["commands"], card["commit"], "seed", "## Limits", model))
    assert card["verdict"] == ("overfitted" if "fgsm" in model else "robust")


@pytest.mark.parametrize("model", MODELS)
def test_accuracy_where_the_data_is(model: str) -> None:
    card = facts(model)
    try:
        data = sora.data.load(card["dataset"])
    except UserError:
        pytest.skip(f"{card['dataset']} is not here")
    positions = card["images"]["positions"]
    images, _ = select_test_images(data, None if positions is None else len(positions))
    (measured,) = card["evaluations"]
    found = sora.evaluate(sora.load(model), images, sora.Linf(card["eps"]), "clean,fgsm").accuracy
    for name, share in found.items():  # another processor may decide a few images otherwise
        assert abs(share - measured["accuracy"][name]) <= max(2 / len(images), 0.003)


def test_commands_read_the_package_and_write_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model, folder = "zoo:digits-sora", RunFolder("zoo:digits-sora")
    before = {file: file.stat().st_mtime_ns for file in folder.path.rglob("*")}
    assert main(["evaluate", model, "--attacks", "clean", "--limit", "20", "--quiet", "--card"]) == 0
    assert "runs/zoo-digits-sora/evaluation.json" in "".join(capsys.readouterr().out.split())
    assert 'sora.load("zoo:digits-sora")' in (tmp_path / "runs/zoo-digits-sora/model_card.md").read_text()
    data = sora.data.load("digits").test
    from PIL import Image

    Image.fromarray(data.gather(torch.arange(1))[0, 0].numpy()).save("digit.png")
    assert main(["predict", model, "digit.png"]) == 0
    assert main(["probe", "eps-curve", model, "--limit", "10"]) == 0
    assert main(["probe", "traces", "zoo:digits-fgsm"]) == 0
    assert main(["export", model, "--to", "torch", "--limit", "10"]) == 0
    assert (tmp_path / "runs/zoo-digits-sora/export/torch/model.pt2").exists()
    assert main(["compare", *MODELS[:2]]) == 0
    assert main(["list", "zoo"]) == main(["show", model]) == main(["show", model, "--json"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in MODELS)
    assert before == {file: file.stat().st_mtime_ns for file in folder.path.rglob("*")}
    assert [run.name for run in find_runs(MODELS)] == MODELS


@pytest.mark.parametrize("verb", ["evaluate", "predict", "export", "show", "compare", "probe traces"])
def test_an_unknown_name(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"predict": ["a.png"], "export": ["--to", "torch"]}.get(verb, [])
    assert main([*verb.split(), "zoo:digits", *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "unknown model of the zoo 'zoo:digits'" in line
    assert "allowed: zoo:" in line


def test_what_a_user_may_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no folder 'runs/zoo-digits-sora'; the package has zoo:digits-sora"):
        find_runs(["runs/zoo-digits-sora"])
    with pytest.raises(UserError, match=r"such as sora\.data\.load\('digits'\)\.test"):
        sora.evaluate(sora.load("zoo:digits-sora"), "digits", sora.Linf("0.15"))  # type: ignore[arg-type]


def test_missing_data_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [m for m in MODELS if facts(m)["dataset"] != "digits"]
    if not others:
        pytest.skip("the zoo has no model of data that must be fetched")
    monkeypatch.setenv("SORA_DATA", str(tmp_path))
    assert main(["evaluate", others[0]]) == 2
    assert f"sora data get {facts(others[0])['dataset']}" in capsys.readouterr().err


def test_the_page_has_the_evaluations_that_came_with_a_model(tmp_path: Path) -> None:
    assert main(["report", "zoo:digits-sora", "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "43.9" in page  # AutoAttack, as on the card
    assert "sora evaluate zoo:digits-sora" in page
    assert str(RunFolder("zoo:digits-sora").path) not in page
