"""Every example runs; those for other packages where these are installed."""

import importlib.util
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
