"""`sora export` writes what other programs load, and measures it again."""

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import yaml

ONNX = ("onnx", "onnxscript", "onnxruntime")


def export(sora, run: Path, to: str, *flags: object) -> dict:
    for package in ONNX if to == "onnx" else ():
        pytest.importorskip(package)
    done = sora("export", run, "--to", to, "--limit", 20, "--threads", 1, "--json", *flags)
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


@pytest.mark.parametrize("to", ["torch", "onnx", "hub", "python"])
def test_an_export_is_measured_again(to, run, sora) -> None:
    report = export(sora, run, to)
    folder = run / "export" / to
    assert report == json.loads((folder / "export.json").read_text())
    assert report["n"] == 20
    assert max(report["largest_logit_difference"].values()) < 1e-5
    assert set(report["changed_predictions"].values()) == {0}
    assert report["accuracy"]["run"] == report["accuracy"]["exported"]
    replayed = sora("evaluate", run, "--adversarial", folder / "adversarial.npz", "--json").out
    assert json.loads(replayed)["accuracy"]["file:pgd10"] == report["accuracy"]["run"]["pgd10"]
    if to == "hub":
        front = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
        (result,) = front["model-index"][0]["results"]
        summary = json.loads((run / "summary.json").read_text())
        assert [metric["value"] for metric in result["metrics"]] == list(summary["accuracy"].values())
        assert json.loads((folder / "config.json").read_text())["id2label"]["9"] == "9"
        hub = pytest.importorskip("huggingface_hub")
        card = hub.ModelCard.load(folder / "README.md")
        assert card.data.eval_results[0].metric_type == "accuracy"
        assert card.data.pipeline_tag == "image-classification"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--to tflite", "--to is 'tflite'; allowed: torch, onnx, hub, python"),
        ("", "missing: --to; allowed: torch, onnx, hub, python"),
        ("--to torch --out {run}/checkpoints", "checkpoints is in use; choose another --out, or delete it"),
        ("--to torch --out {run}/config.yaml", "config.yaml is in use; choose another --out, or delete it"),
        ("--to torch --limit 9999", "--limit: digits's test set has 360 images, 9999 were requested"),
    ],
)
def test_a_mistake_is_one_line(flags, message, run, sora) -> None:
    before = sorted(run.rglob("*"))
    done = sora("export", run, *flags.format(run=run).split(), code=2)
    assert (done.out, done.err.count("\n")) == ("", 1)
    assert message in done.err
    assert sorted(run.rglob("*")) in (before, sorted([*before, run / "export"]))


def test_a_missing_package_is_one_line(run, sora, monkeypatch) -> None:
    from sora.export import formats

    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    done = sora("export", run, "--to", "onnx", code=2)
    assert done.err.count("\n") == 1
    assert "this format needs onnx, onnxscript, onnxruntime: pip install 'sora-at[export]'" in done.err


ELSEWHERE = """
import importlib.util, json, sys
import numpy, torch
assert importlib.util.find_spec("sora") is None
to, folder = sys.argv[1:]
file = numpy.load(f"{folder}/adversarial.npz")
x, y = file["adversarial_pgd10"], file["labels"]
if to == "torch":
    logits = torch.export.load(f"{folder}/model.pt2").module()(torch.from_numpy(x)).detach().numpy()
elif to == "onnx":
    import onnxruntime
    logits = onnxruntime.InferenceSession(f"{folder}/model.onnx").run(None, {"pixels": x})[0]
else:
    sys.path.insert(0, folder)
    from model import load
    logits = load()(torch.from_numpy(x)).detach().numpy()
print(json.dumps(float((logits.argmax(1) == y).mean())))
"""


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with all installed packages but this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    place = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "sora" not in entry.name and entry.suffix != ".pth":
            (place / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs links")
@pytest.mark.parametrize("to", ["torch", "onnx", "python"])
def test_it_runs_in_an_environment_without_this_package(to, run, sora, other_python, tmp_path) -> None:
    report = export(sora, run, to, "--out", tmp_path / "out")
    command = [str(other_python), "-c", ELSEWHERE, to, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert json.loads(done.stdout) == report["accuracy"]["exported"]["pgd10"]
