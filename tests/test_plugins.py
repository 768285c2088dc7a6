"""What another installed package registers is found by its names."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sora import attacks, data, methods, models
from sora.errors import UserError
from sora.threat import Linf

PLUGINS = {
    "methods": """
from sora.methods import Crafted, Method, register
@register("plugged", "in one line")
class Plugged(Method):
    def craft(self, model, batch):
        return Crafted(batch.x)
""",
    "attacks": """
from dataclasses import dataclass
from sora.attacks import Attack, register
@register("plugged", "in one line", pattern=r"plugged(?P<tries>[1-9])", examples=("plugged3",))
@dataclass(frozen=True)
class Plugged(Attack):
    tries: int = 1
    def __call__(self, model, x, y, threat, seed=0):
        return x
""",
    "models": """
from torch import nn
from sora.models import register
@register("plugged", summary="in one line", paper="none")
def plugged(num_classes, in_channels, image_size):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))
""",
    "data": """
from sora import data
data.register("plugged", summary="in one line")(lambda root: data.load("digits", root))
""",
}
USES = {
    "methods": lambda: methods.create("plugged", Linf(0.1)).info.name == "plugged",
    "attacks": lambda: attacks.create("plugged4").name == "plugged4",
    "models": lambda: models.create("plugged", 4, image_size=8)(torch.rand(2, 3, 8, 8)).shape == (2, 4),
    "data": lambda: len(data.load("plugged").train) == 1257,
}


def install(folder: Path, module: str, code: str, entry_points: str) -> None:
    """Write a module and the metadata that names its entry points; `folder` belongs on the path."""
    (folder / f"{module}.py").write_text(code)
    package = folder / f"{module}-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(entry_points)


@pytest.mark.parametrize("room", PLUGINS)
def test_an_installed_package_adds_an_entry_of_any_name(room: str, tmp_path, monkeypatch, caplog) -> None:
    """One that cannot be imported is named and hides no other."""
    entry_points = f"[sora.{room}]\nanything = plugged_{room}\nbroken = no_such_module\n"
    install(tmp_path, f"plugged_{room}", PLUGINS[room], entry_points)
    monkeypatch.syspath_prepend(tmp_path)
    registry = importlib.import_module(f"sora.{room}")
    assert {"plugged", "plugged3"} & set(registry.names())
    assert "anything" not in registry.names()
    assert "'broken': cannot import 'no_such_module'" in caplog.text
    assert registry.info("plugged").summary == "in one line"
    assert USES[room]()
    with pytest.raises(UserError, match="'broken': cannot import 'no_such_module': ModuleNotFound"):
        registry.info("broken")


PROBE_AND_METRIC = """
from sora import metrics, probes
from sora.runs import RunFolder

@metrics.register("brightness", "mean pixel", scale="log")
def brightness(batch):
    return batch.x.mean()

@probes.register("length", "number of logged steps")
class Length(probes.Probe[RunFolder]):
    def measure(self, subject):
        return {"steps": len(subject.read_log("metrics"))}

    def picture(self, results, file):
        file.write_text("")

    def sentence(self, result):
        return f"{result['steps']} logged steps"
"""

USE = """
import sys
import torch
from sora import Linf, metrics, probes
from sora.probes.traces import rows

print(probes.names()[-1], metrics.names()[-1])
print(probes.probe_runs("length", ["run"]).sentences["run"])
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
x, y = torch.full((3, 1, 2, 2), 0.25), torch.zeros(3, dtype=torch.long)
print(metrics.measure(model, x, y, Linf(0.1), ("brightness",)))
print(rows()["brightness"][1].scale)
print("matplotlib" in sys.modules)  # it is imported only to draw
"""


def test_a_probe_and_a_metric_are_found_in_a_new_process_which_does_not_import_what_draws(tmp_path) -> None:
    groups = {"sora.probes": "length", "sora.metrics": "brightness"}
    text = "\n".join(f"[{group}]\n{name} = plugin_of_a_user" for group, name in groups.items())
    install(tmp_path, "plugin_of_a_user", PROBE_AND_METRIC, text)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("method: fgsm\n")
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "length brightness",
        "2 logged steps",
        "{'brightness': 0.25}",
        "log",
        "False",
    ]
