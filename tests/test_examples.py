"""Every example runs; those for other packages where these are installed."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"
torch.set_num_threads(1)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    """An example as a module, by its file's name; they import one another as scripts do."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "plain_loop", raising=False)

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_plain_loop_trains_and_hears_the_alarm(example, capsys: pytest.CaptureFixture[str]) -> None:
    """FGSM at a radius it cannot take never becomes robust, and the guard says so after its silence."""
    assert example("plain_loop").main(epochs=1) == []
    assert "epoch 1: loss" in capsys.readouterr().out
    assert example("plain_loop").main("fgsm", epochs=5, eps=0.6) == ["alarm"]
    assert "alarm, PertAlign average" in capsys.readouterr().out


def test_lightning(example) -> None:
    pytest.importorskip("lightning")
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    module = example("lightning_module").main(epochs=1, **quiet)
    assert module.global_step == 15
    assert module.guard.seen == 10
    kept: dict = {}
    module.on_save_checkpoint(kept)
    module.guard.update(0.0)
    module.on_load_checkpoint(kept)
    assert module.guard.seen == 10


def test_accelerate(example) -> None:
    pytest.importorskip("accelerate")
    assert example("accelerate_loop").main(epochs=1, cpu=True) == []


def test_mixed_precision(example, capsys: pytest.CaptureFixture[str]) -> None:
    assert example("mixed_precision").main(epochs=1, device="cpu") < 2.5
    assert "scale 65536" in capsys.readouterr().out  # no gradient overflowed


def in_two_processes(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    return done.stdout.splitlines()


def test_ddp_in_two_processes(tmp_path: Path) -> None:
    script = tmp_path / "short.py"
    script.write_text(
        f"import sys; sys.path.append({str(EXAMPLES)!r})\nimport ddp_loop; ddp_loop.main(epochs=1)"
    )
    printed = "".join(in_two_processes(str(script)))  # two processes may print into one line
    found = dict(re.findall(r"rank (\d), epoch 1: loss [\d.]+, sum of weights ([\d.-]+)", printed))
    assert sorted(found) == ["0", "1"]
    assert len(set(found.values())) == 1  # the same weights in both


def test_accelerate_in_two_processes() -> None:
    pytest.importorskip("accelerate")
    first, *lines = in_two_processes(str(EXAMPLES / "accelerate_loop.py"), "--cpu")
    assert first == "2 process(es) on cpu"
    assert "epoch 10: loss" in lines[-1]


def test_hugging_face_trainer(example, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    assert example("hf_trainer").main(steps=20, folder=str(tmp_path)) < 2.35


def test_timm(example) -> None:
    pytest.importorskip("torchvision", reason="timm cannot be imported without torchvision")
    pytest.importorskip("timm")
    assert example("timm_model").main(epochs=1).n == 100
