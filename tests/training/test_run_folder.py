"""The run folder, key by key."""

import json
import math
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import sora
from sora.errors import UserError
from sora.training import train
from sora.training.config import TrainConfig

METRICS = {"step", "epoch", "loss", "accuracy", "pert_align", "linearity", "step_size", "lr"}
SUMMARY = {
    "method", "dataset", "model", "seed", "versions", "train_seconds", "images_per_second", "peak_memory_mb",
    "weights", "threat", "accuracy", "attacks", "pert_align", "co",
}  # fmt: skip


@pytest.fixture
def finished(settings) -> TrainConfig:
    config = settings()
    train(config, quiet=True)
    return config


def read(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_logs_have_the_promised_keys(finished) -> None:
    rows = read(finished.folder(), "metrics.jsonl")
    assert all(set(row) >= METRICS for row in rows)
    assert [row["step"] for row in rows] == [2, 3, 4, 6, 8, 9]  # every second step and every epoch's last
    assert [row["epoch"] for row in rows] == [1, 1, 2, 2, 3, 3]
    evals = read(finished.folder(), "evals.jsonl")
    assert [row["epoch"] for row in evals] == [1, 2, 3]
    assert all(row["attacks"]["pgd10"]["n"] == 20 for row in evals)


def test_summary_has_the_promised_keys(finished) -> None:
    summary = json.loads((finished.folder() / "summary.json").read_text())
    assert set(summary) >= SUMMARY
    assert summary["threat"] == {"norm": "linf", "eps": 0.15}
    assert set(summary["attacks"]["pgd10"]) >= {
        "norm",
        "eps",
        "steps",
        "step_size",
        "restarts",
        "n",
        "low",
        "high",
    }
    assert summary["attacks"]["pgd10"]["n"] == 40
    assert set(summary["co"]) == {"detected", "verdict", "events"}
    assert set(summary["pert_align"]) == {"last", "min"}
    assert all(0 <= value <= 1 for value in summary["accuracy"].values())


def test_numbers_that_do_not_exist_are_null(settings) -> None:
    config = settings("benign")
    summary = train(config, quiet=True)
    assert math.isnan(summary["pert_align"]["last"])
    assert all(row["pert_align"] is None for row in read(config.folder(), "metrics.jsonl"))
    assert json.loads((config.folder() / "summary.json").read_text())["pert_align"]["last"] is None


def test_config_yaml_is_enough_to_run_again(finished, settings, tmp_path) -> None:
    table = yaml.safe_load((finished.folder() / "config.yaml").read_text())
    again = TrainConfig.build(table | {"out": str(tmp_path / "again")})
    train(again, quiet=True)
    for name in ("model.safetensors", "metrics.jsonl", "evals.jsonl"):
        assert (again.folder() / name).read_bytes() == (finished.folder() / name).read_bytes()


def test_load_gives_the_model_back(finished) -> None:
    model = sora.load(finished.folder())
    assert not model.training
    weights = load_file(finished.folder() / "model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert model(torch.rand(2, 1, 16, 16)).shape == (2, 10)


def test_only_the_newest_two_checkpoints_are_kept(finished) -> None:
    names = sorted(path.name for path in (finished.folder() / "checkpoints").glob("step-*"))
    assert names == ["step-0-00000008.safetensors", "step-0-00000009.safetensors"]


def test_own_network_is_imported_only_when_named_again(settings, tmp_path, monkeypatch) -> None:
    source = "import torch\ndef build(num_classes):\n"
    source += "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(256, num_classes))\n"
    (tmp_path / "ownnet.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = settings(model="ownnet:build", width=None, set={})
    table = yaml.safe_load(config.to_yaml())
    table["set"] = {key: value for key, value in table["set"].items() if not key.startswith("model.")}
    train(TrainConfig.build(table), quiet=True)
    with pytest.raises(UserError, match="repeat it: --model ownnet:build"):
        sora.load(config.folder())
    assert sora.load(config.folder(), model="ownnet:build")(torch.rand(1, 1, 16, 16)).shape == (1, 10)


def test_weights_to_start_from(finished, settings) -> None:
    first = settings(out="next", init=str(finished.folder() / "model.safetensors"), lr=1e-9, lr_min=0.0)
    train(first, quiet=True)
    started = load_file(finished.folder() / "model.safetensors")
    ended = load_file(first.folder() / "model.safetensors")
    for name, value in started.items():
        if "running" not in name and "num_batches" not in name:
            assert torch.allclose(value, ended[name], atol=1e-6), name


@pytest.mark.parametrize(
    "content", [b"not tensors", b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00\x8c\x01x\x94."]
)
def test_weights_that_are_no_safetensors_are_refused(content, settings, tmp_path) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(content)
    with pytest.raises(UserError, match="not a safetensors file"):
        train(settings(init=str(file)), quiet=True)
    assert not settings().folder().exists()
