"""A probe and a metric from another installed package are found by their names."""

import os
import subprocess
import sys
from pathlib import Path

from tests.plugins import install

PLUGIN = """
from sora import metrics, probes
from sora.runs import RunFolder

@metrics.register("brightness", "mean pixel", scale="scaled", colour="red")
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
from sora.probes.traces import looks

print(probes.names()[-1], metrics.names()[-1])
print(probes.probe_runs("length", ["run"]).sentences["run"])
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
x, y = torch.full((3, 1, 2, 2), 0.25), torch.zeros(3, dtype=torch.long)
print(metrics.measure(model, x, y, Linf(0.1), ("brightness",)))
print(looks()["brightness"].scale)
print("matplotlib" in sys.modules)  # it is imported only to draw
"""


def test_entry_points(tmp_path: Path) -> None:
    groups = {"sora.probes": "length", "sora.metrics": "brightness"}
    text = "\n".join(f"[{group}]\n{name} = plugin_of_a_user" for group, name in groups.items())
    install(tmp_path, "plugin_of_a_user", PLUGIN, text)
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
        "scaled",
        "False",
    ]
