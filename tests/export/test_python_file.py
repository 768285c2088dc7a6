"""The Python file of every architecture gives the logits of the model it was written for."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sora.errors import UserError
from sora.export.formats import _open_python
from sora.export.python_file import python_source
from sora.runs import build_model

SMALL = {
    "patchresnet": (4, {"stages": 2, "patch": 1}),
    "preactresnet18": (4, {"stages": 2, "shortcut_input": "activated"}),
    "resnet18": (4, {"stages": 2}),
    "wideresnet28-10": (4, {"depth": 10}),
    "senet18": (4, {"stages": 2}),
    "vit-small": (12, {"depth": 1, "heads": 2}),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_file_rebuilds_the_model(name: str, tmp_path: Path) -> None:
    width, options = SMALL[name]
    about = {"name": name, "num_classes": 3, "in_channels": 2, "image_size": 8, "width": width}
    about |= {"mean": [0.5], "std": [0.1, 0.2], "options": options, "classes": ["a", '"', "c\n"]}
    model = build_model(about).eval()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    text = python_source(about, (2, 8, 8))
    assert "import sora" not in text
    assert "from sora" not in text
    (tmp_path / "model.py").write_text(text)
    x = torch.rand(4, 2, 8, 8)
    assert torch.equal(_open_python(tmp_path)(x), model(x))


def test_a_model_of_another_package_is_refused() -> None:
    with pytest.raises(UserError, match=r"the model my\.net:build is not one of this package.* --to onnx$"):
        python_source({"name": "my.net:build"}, (1, 8, 8))
