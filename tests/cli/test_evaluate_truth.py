"""`sora evaluate`: what belongs to a number, which network it is of, images kept and checked, Ctrl-C."""

import json
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sora import data, models
from sora.attacks import Attack, register

DIGITS = ("--dataset", "digits", "--quiet", "--device", "cpu")
SMALL = (*DIGITS, "--limit", "40")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    torch.manual_seed(0)
    save_file(models.create("preactresnet18", 10, 1, 16, width=4, stages=2).state_dict(), path)
    return path


@pytest.fixture
def evaluate(weights: Path, tmp_path: Path, sora: Any) -> Any:
    """Evaluates the weights into this test's own folder and returns what was printed."""

    def call(*arguments: object, code: int = 0) -> str:
        network = ("--weights", weights, "--model", "preactresnet18", "--width", "4")
        # A file of attacked images decides which images there are, and nothing is written.
        chosen = DIGITS if "--adversarial" in arguments else (*SMALL, "--out", tmp_path / "out")
        done = sora("evaluate", *network, "--set", "model.stages=2", *chosen, *arguments, code=code)
        return str(done.err if code else done.out)

    return call


def test_data_that_changed_since_training_is_noticed(tmp_path: Path, sora: Any) -> None:
    """Other images or labels are a warning; other names of classes, or another order, are an error."""
    pixels = np.random.default_rng(0).integers(0, 256, (30, 8, 8), dtype=np.uint8)
    labels, names = np.arange(30) % 3, np.array(["ant", "bee", "cat"])
    path, run = tmp_path / "d.npz", tmp_path / "run"

    def write(labels: Any, **more: Any) -> None:
        images = {"train_images": pixels, "test_images": pixels}
        np.savez(path, **images, train_labels=labels, test_labels=labels, **more)

    write(labels, classes=names)
    flags = "--epochs 1 --batch-size 30 --width 4 --set model.stages=1 --holdout 0 --attacks clean"
    sora("train", "--dataset", f"npz:{path}", *flags.split(), "--out", run, "--quiet")
    command = ("evaluate", run, "--attacks", "clean", "--threads", 1, "--quiet", "--card")
    write(labels)  # without names there is nothing to compare
    assert "has changed" not in sora(*command).out
    write((labels + 1) % 3, classes=names)
    warning = f"npz:{path} has changed since training"
    for _ in range(2):  # measured, and from the record
        assert f"warning: {warning}" in " ".join(sora(*command).out.split())
    (shown,) = sora.json(*command)
    card, stored = (json.loads((run / f"{name}.json").read_text()) for name in ("model_card", "evaluation"))
    for record in (shown, stored[-1], card["evaluations"][0]):
        assert warning in record["warnings"][-1]
    assert card["unreliable"]
    assert warning in (run / "model_card.md").read_text()
    assert not stored[0]["warnings"] or warning not in stored[0]["warnings"][-1]
    write(labels, classes=np.roll(names, 1))
    for verb in (command, ("probe", "eps-curve", run)):
        assert "class 0 of" in sora.refuse("is 'cat', but was 'ant' in training", *verb)


def test_an_option_of_the_network_is_part_of_the_fingerprint(evaluate: Any, tmp_path: Path) -> None:
    """The same weights fit both networks, which compute different logits."""
    found = {}
    for shortcut in ("raw", "activated"):
        option = ("--set", f"model.shortcut_input={shortcut}")
        (found[shortcut],) = json.loads(evaluate(*option, "--attacks", "clean", "--json"))
        assert found[shortcut]["network"]["options"] == {"stages": 2, "shortcut_input": shortcut}
    assert found["raw"]["fingerprint"]["weights"] == found["activated"]["fingerprint"]["weights"]
    assert found["raw"]["fingerprint"]["network"] != found["activated"]["fingerprint"]["network"]
    assert len(json.loads((tmp_path / "out" / "evaluation.json").read_text())) == 2


def test_only_the_attacks_asked_for_are_printed(evaluate: Any) -> None:
    evaluate("--attacks", "clean,fgsm,pgd2")
    printed = evaluate("--attacks", "fgsm")
    assert "fgsm" in printed
    assert "clean" not in printed
    (record,) = json.loads(evaluate("--attacks", "pgd2,clean", "--json"))
    assert list(record["accuracy"]) == ["pgd2", "clean"]
    assert record["worst_case"]["over"] == ["pgd2", "clean"]


def test_the_first_images_as_leaderboards_take_them(evaluate: Any) -> None:
    (first,) = json.loads(evaluate("--attacks", "clean", "--first", "--json"))
    assert first["images"] == {
        "split": "test",
        "of": len(data.load("digits").test),
        "chosen": "first",
        "positions": list(range(40)),
    }
    (balanced,) = json.loads(evaluate("--attacks", "clean", "--json"))
    assert balanced["images"]["chosen"] == "class-balanced"
    assert balanced["fingerprint"]["data"] != first["fingerprint"]["data"]
    assert "--first requires --limit" in evaluate("--limit", "0", "--first", code=2)


def test_the_card_has_what_a_repetition_needs(evaluate: Any, tmp_path: Path) -> None:
    evaluate("--attacks", "clean,pgd2", "--seed", "3", "--batch-size", "20", "--card")
    card = json.loads((tmp_path / "out" / "model_card.json").read_text())
    assert card["additional_data"] is None
    attack = card["evaluations"][0]["attacks"]["pgd2"]
    assert (attack["seed"], attack["batch_size"]) == (3, 20)
    assert attack["versions"]["torch"] == version("torch")
    assert {"weights", "data", "network"} <= card["fingerprint"].keys()
    assert card["network"]["options"] == {"stages": 2}
    assert len(card["images"]["positions"]) == 40
    text = (tmp_path / "out" / "model_card.md").read_text()
    assert "pgd2: seed 3, batches of 20; sora" in text
    evaluate("--attacks", "clean", "--card", "--additional-data", "yes")
    assert json.loads((tmp_path / "out" / "model_card.json").read_text())["additional_data"] is True


def test_attacked_images_are_kept_and_checked_again(evaluate: Any, tmp_path: Path) -> None:
    path = tmp_path / "adversarial.npz"
    (record,) = json.loads(evaluate("--attacks", "clean,pgd2,apgd-ce", "--save-adversarial", path, "--json"))
    with np.load(path) as file:
        assert file["adversarial_apgd-ce"].shape == (40, 1, 16, 16)
        assert file["positions"].tolist() == record["images"]["positions"]
    checked = json.loads(evaluate("--adversarial", path, "--json"))
    assert checked["accuracy"] == {f"file:{name}": share for name, share in record["accuracy"].items()}
    assert checked["images"]["of"] > checked["attacks"]["file:clean"]["n"] == 40
    shown = " ".join(evaluate("--adversarial", path).split())
    assert "40 of 360 test images" in shown
    assert "all inside the ball and the box; names and settings of attacks are what the file says" in shown
    arrays = dict(np.load(path))
    arrays["adversarial_pgd2"] = (arrays["adversarial_pgd2"] + 0.5).clip(0, 1)
    np.savez(path, **arrays)
    assert "pgd2" in (message := evaluate("--adversarial", path, code=1))
    assert "left the ball" in message
    arrays["labels"] = arrays["labels"][::-1]
    np.savez(path, **arrays)
    assert "belongs to other images" in evaluate("--adversarial", path, code=2)
    path.write_text("no archive")
    assert "is not an npz file" in evaluate("--adversarial", path, code=2)
    assert "a single radius; got 2" in evaluate("--save-adversarial", path, "--eps", "0.1,0.2", code=2)


def test_the_reduced_autoattack_goes_by_its_name(evaluate: Any) -> None:
    (record,) = json.loads(evaluate("--eps", "0", "--attacks", "aa-reduced", "--json"))
    assert record["attacks"]["aa-reduced"]["parts"] == ["apgd-ce", "fab-t", "square"]


def test_a_failing_attack_is_reported_below_the_results_of_the_others(
    evaluate: Any, sora: Any, weights: Path, tmp_path: Path
) -> None:
    @register("big", "leaves the ball")
    class Big(Attack):
        def __call__(self, model: Any, x: Any, y: Any, threat: Any, seed: int = 0) -> Any:
            return 1 - x

    network = ("--weights", weights, "--model", "preactresnet18", "--width", "4", "--set", "model.stages=2")
    flags = (*SMALL, "--out", tmp_path / "out", "--attacks", "clean,big,fgsm")
    for _ in range(2):  # the second time, the others have a record
        printed = sora("evaluate", *network, *flags, code=1)
        assert "clean" in printed.out
        assert "fgsm" in printed.out
        assert "worst case" in printed.out
        assert printed.err.startswith("sora: attack big left the ball")
        assert printed.err.count("\n") == 1
    assert "attack big left the ball" in evaluate("--attacks", "big", code=1)


SLOW = """
import torch
from torch import nn

class Slow(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layer, self.work = nn.Linear(256, 10), torch.rand(size, size)

    def forward(self, x):
        if len(x) == 10:  # the second batch, when the first is finished
            torch.matrix_power(self.work, 2**14)
        return self.layer(x.flatten(1))

def build():
    return Slow(3000)
"""


def test_ctrl_c_stops_soon_and_says_what_is_kept(tmp_path: Path) -> None:
    """Also inside a computation of many seconds, where Python runs no signal handler."""
    (tmp_path / "slow_net.py").write_text(SLOW)
    torch.manual_seed(0)
    layer = torch.nn.Linear(256, 10)
    save_file({f"layer.{k}": v for k, v in layer.state_dict().items()}, tmp_path / "w.safetensors")
    flags = "--weights w.safetensors --model slow_net:build --dataset digits --limit 40 --batch-size 30"
    flags += " --attacks clean --threads 1"
    command = [sys.executable, "-m", "sora", "evaluate", *flags.split()]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        state = tmp_path / "w.safetensors-evaluation" / "evaluation-state"
        while not list(state.rglob("*.safetensors")) and process.poll() is None:
            time.sleep(0.05)
        time.sleep(0.5)
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
        took = time.monotonic() - sent
    assert process.returncode == 130
    assert "stopped by SIGINT; 1 finished unit of work kept in" in error
    assert "the same command continues" in error
    assert error.count("\n") == 1
    assert took < 15  # the product alone takes longer
