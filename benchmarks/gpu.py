"""What only an accelerator shows, in one report to send back: `make test-gpu DEVICE=cuda` writes it.

python benchmarks/gpu.py --device cuda|mps|xpu [--out gpu-report.json] [--width 64] [--batch 128]

It measures step times and peak memory of every method, runs in float32, bfloat16 and float16, whether a
repeated run gives the same bits, which kernels are nondeterministic, how far the weights are from the CPU's,
and two devices over torchrun.
A part that fails is reported by its error, and the others go on.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import sora
from sora import methods, models
from sora._devices import pick_device
from sora.methods import Bench, cost_table
from sora.runs.facts import machine
from sora.threat import Linf

RUN = "train --dataset digits --method sora --epochs 3 --batch-size 128 --width 16 --quiet"


def trained(folder: Path, name: str, device: str, *flags: str, processes: int = 1) -> dict[str, Any]:
    """The summary of a short run, and where its weights are."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), "-m", "sora", *RUN.split()]
    command += ["--device", device, "--out", str(folder / name), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    summary = json.loads((folder / name / "summary.json").read_text())
    keys = ("accuracy", "train_seconds", "images_per_second", "peak_memory_mb")
    return {key: summary[key] for key in keys} | {"weights": str(folder / name / "model.safetensors")}


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference between two models' weights; 0 for the same bits."""
    a, b = load_file(one["weights"]), load_file(other["weights"])
    return max((a[name].double() - b[name].double()).abs().max().item() for name in a)


def nondeterministic(device: torch.device) -> list[str]:
    """The warnings of torch about nondeterministic kernels, in a step of every method."""
    model, found = models.create("preactresnet18", 10, width=8).to(device), set[str]()
    x, y = torch.rand(16, 3, 32, 32, device=device), torch.arange(16, device=device) % 10
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for name in methods.names():
            method = methods.create(name, Linf(8 / 255)).to(device)
            method.setup(
                n_train=16,
                shape=(3, 32, 32),
                batch_size=16,
                epochs=2,
                steps_per_epoch=1,
                classes=10,
                model=model,
            )
            method.begin_epoch(1)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                method.step(model, x, y, index=torch.arange(16, device=device))
            found |= {f"{name}: {str(each.message).split('.')[0]}" for each in caught}
    finally:
        torch.use_deterministic_algorithms(False)
    return sorted(found)


def report(device: torch.device, width: int, batch: int, rounds: int) -> dict[str, Any]:
    """All measurements."""
    result: dict[str, Any] = {
        "sora": sora.__version__,
        "torch": torch.__version__,
        "machine": machine(device),
    }
    result |= {"devices": torch.accelerator.device_count(), "width": width, "batch": batch}
    bench = Bench(lambda: models.create("preactresnet18", 10, width=width), (3, 32, 32), 10)

    def part(name: str, measure: Callable[[], Any]) -> Any:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            result[name] = measure()
        except Exception as error:
            result[name] = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        return result[name]

    part(
        "steps",
        lambda: cost_table(methods.names(), device=str(device), batch_size=batch, rounds=rounds, bench=bench),
    )
    part("nondeterministic kernels", lambda: nondeterministic(device))
    with tempfile.TemporaryDirectory() as scratch:
        folder, kind = Path(scratch), device.type
        runs = {
            precision: part(precision, lambda p=precision: trained(folder, p, kind, "--precision", p))
            for precision in ("fp32", "bf16", "fp16")
        }
        again = part("fp32 again", lambda: trained(folder, "again", kind))
        part("difference of a repeated run", lambda: difference(runs["fp32"], again))
        part("cpu", lambda: trained(folder, "cpu", "cpu"))
        part("difference to the CPU", lambda: difference(runs["fp32"], result["cpu"]))
        part("compiled", lambda: trained(folder, "compiled", kind, "--compile"))
        if torch.accelerator.device_count() > 1:
            part("two devices", lambda: trained(folder, "two", kind, processes=2))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("gpu-report.json"))
    for name, default in (("width", 64), ("batch", 128), ("rounds", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    found = report(pick_device(args.device), args.width, args.batch, args.rounds)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(args.out)


if __name__ == "__main__":
    main()
