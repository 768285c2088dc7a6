"""docs/deploy.md: its Python and its command run as written, on a small run."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image

from sora.cli import main

PAGE = Path(__file__).parents[1] / "docs" / "deploy.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `runs/a` is a finished run on digits."""
    path = tmp_path_factory.mktemp("deploy")
    torch.set_num_threads(1)
    flags = "--dataset digits --epochs 1 --batch-size 32 --width 4 --set model.stages=1 --limit-train 64"
    flags += " --limit-test 40 --holdout 20 --threads 1 --attacks clean --quiet"
    assert main(["train", *flags.split(), "--out", str(path / "runs" / "a")]) == 0
    return path


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_code_block_runs_without_warnings_of_the_tracer(
    block: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        exec(compile(block, "docs/deploy.md", "exec"), {})
    assert capsys.readouterr().out


def test_images_are_predicted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for name in ("one.png", "two.png"):
        Image.new("L", (16, 16), 128).save(name)
    (command,) = re.findall(r"\$ sora (.*)", PAGE.read_text(encoding="utf-8"))
    assert main(command.split()) == 0
    assert "two.png" in capsys.readouterr().out
