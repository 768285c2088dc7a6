"""Every example runs; those for other packages where these are installed."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import pytest
import torch

from sora.cli import main

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


def test_fine_tuning(example, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = example("finetune").main(seeds=1, images=40, epochs=2, out=str(tmp_path / "low"))
    assert [*found] == ["fine-tuned", "from scratch"]
    assert "was trained for other classes: network.head is a new head" in capsys.readouterr().err


@pytest.mark.slow
def test_int8(example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    assert main(["export", "zoo:digits-sora", "--to", "onnx", "--limit", "40"]) == 0
    found = example("int8_onnx").main("zoo:digits-sora", limit=40)
    assert found["clean"] > 0.9
    assert 0.3 < found["pgd10"] <= found["clean"]
    assert 0.3 < found["replayed"] <= 1


def cells_of_tour() -> list[dict[str, Any]]:
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_the_tour_is_stored_without_results() -> None:
    for cell in cells_of_tour():
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.slow
def test_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As Jupyter runs it: cell by cell in one namespace, the last expression of a cell is shown."""
    pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    space: dict[str, Any] = {}
    shown: list[Any] = []
    for cell in cells_of_tour():
        *body, last = ast.parse("".join(cell["source"])).body
        rest = [] if isinstance(last, ast.Expr) else [last]
        exec(compile(ast.Module([*body, *rest], []), "tour", "exec"), space)
        if not rest:
            shown.append(eval(compile(ast.Expression(last.value), "tour", "eval"), space))  # type: ignore[attr-defined]
    robust, overfitted, trained, _, comparison, page = shown
    assert (robust.verdict, overfitted.verdict, trained.verdict) == ("robust", "overfitted", "overfitted")
    assert "overfitted to its attack" in capsys.readouterr().err  # the alarm
    assert "first alarm at step" in trained._repr_html_()
    assert {name: row["verdict"] for name, row in comparison["methods"].items()}["sora"] == "robust"
    assert all(name in comparison._repr_html_() for name in ("fgsm", "n-fgsm", "sora", "overfitted"))
    assert page.stat().st_size > 100_000
