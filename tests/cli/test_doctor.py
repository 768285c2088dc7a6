"""`sora doctor`: versions, machine, data, and what is missing."""

from importlib import metadata
from pathlib import Path
from typing import Any

import sora as package


def test_it_says_what_is_here_and_what_is_missing(sora: Any, tmp_path: Path, monkeypatch: Any) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name in ("plotly", "rich"):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    found = sora.json("doctor", "--data-dir", str(tmp_path))
    assert found["packages"]["sora"] == package.__version__
    assert found["packages"]["torch"] == version("torch")
    assert found["machine"]["device"]
    assert {"report", "parquet", "export", "ray", "tensorboard", "wandb"} == found["extras"].keys()
    assert found["data"]["digits"] == "1,257 train + 180 val + 360 test images"
    assert found["data"]["cifar10"] == "not here: sora data get cifar10"

    monkeypatch.setattr(metadata, "version", version)
    ended = sora("doctor", "--data-dir", str(tmp_path), code=1)
    assert "without plotly, for sora report: pip install 'sora-at[report]'" in ended.out
    assert "rich is needed" in ended.out


def test_a_damaged_data_set_is_named(sora: Any, tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "meta.json").write_text("{")
    assert sora.json("doctor", "--data-dir", str(tmp_path))["data"]["cifar10"].startswith("damaged: ")
