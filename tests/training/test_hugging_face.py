"""Models of transformers, built from a config: trained, evaluated, fine-tuned, classified with and probed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import sora
from sora.cli import main
from tests.training.test_fit import FAST, tensors

transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)


def vit(num_classes: int = 3, in_channels: int = 3, image_size: int = 8) -> nn.Module:
    """Importable as tests.training.test_hugging_face:vit."""
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    sides = {"image_size": image_size, "patch_size": image_size // 2, "num_channels": in_channels}
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(num_labels=num_classes, **sides, **size)
    )


def resnet(num_classes: int = 3) -> nn.Module:
    size: dict[str, Any] = {"embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1]}
    config = transformers.ResNetConfig(num_labels=num_classes, layer_type="basic", **size)
    return transformers.ResNetForImageClassification(config)


@pytest.mark.parametrize("build", [vit, resnet])
def test_a_step_an_evaluation_and_fine_tuning_with_other_classes(build: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, (images, y) = build(), tensors(30)
    x, threat = images / 255, sora.Linf("8/255")
    out = sora.methods.create("sora", threat).step(model, x, y)
    assert out.loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
    found = sora.evaluate(model, (x, y), threat, "clean,fgsm,pgd10")
    right = (model.eval()(x).logits.argmax(1) == y).sum().item()
    assert found.accuracy["pgd10"] <= found.accuracy["clean"] == right / 30
    model.train()
    sora.fit(model, (tensors(), (images, y)), out=tmp_path / "three", quiet=True, **FAST)
    trained = sora.load(tmp_path / "three", model=build()).state_dict()
    new, four = build(4), (tensors(classes=4), tensors(40, 4))
    start = {"init": str(tmp_path / "three"), "recipe": "finetune"}
    # Weights that are not changed by an epoch without a learning rate are those the run started with.
    result = sora.fit(new, four, quiet=True, **start, **FAST | {"lr": 1e-12, "lr_min": 0.0})
    assert result.num_classes == 4
    names = [name for name in trained if trained[name].shape == new.state_dict()[name].shape]
    assert len(trained) - len(names) == 2  # weight and bias of the head
    floats = [n for n in names if trained[n].is_floating_point() and "running" not in n]
    assert all(torch.allclose(trained[n], new.state_dict()[n], atol=1e-6) for n in floats)


def test_predict_and_probes_read_the_logits(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    name = "tests.training.test_hugging_face:vit"
    flags = "--dataset digits --limit-train 40 --limit-test 20 --holdout 20 --batch-size 20 --epochs 1"
    run = str(tmp_path / "run")
    assert (
        main(["train", *flags.split(), "--attacks", "clean", "--model", name, "--out", run, "--quiet"]) == 0
    )
    Image.fromarray(np.zeros((16, 16), np.uint8)).save(tmp_path / "a.png")
    assert main(["predict", run, str(tmp_path / "a.png"), "--model", name]) == 0
    for probe in ("eps-curve", "landscape", "curvature"):  # the last needs second derivatives
        assert main(["probe", probe, run, "--model", name, "--limit", "4"]) == 0
    assert "picture:" in capsys.readouterr().out
