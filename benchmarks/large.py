"""Synthetic JPEGs in ImageNet-100's form through the whole path: packed, mapped, read, trained on.

python benchmarks/large.py [--images 6000] [--readers 3] [--batch 16] [--width 16] [--rounds 3]

Two processes pack the same set at once. Then several read it by memory map, each all images, and the memory
that they do not share is compared with the size of the set. Last, making a batch is timed beside a SORA step.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image

from sora import data, methods, models
from sora.threat import Linf

CLASSES, SIDE = 100, 256
PACK = "from sora import data; import sys; data.get('imagenet100', given=sys.argv[1], root=sys.argv[2])"
READ = """
import sys, torch
from sora import data
images = data.load("imagenet100", sys.argv[2]).train
for x, y in images.batches(64):
    pass
"""
PEAK = """
import threading, time
def follow():
    while True:
        for line in open("/proc/self/status"):
            if line.startswith("RssAnon"):
                peak[0] = max(peak[0], int(line.split()[1]) // 1024)
        time.sleep(0.02)
peak = [0]
threading.Thread(target=follow, daemon=True).start()
"""


def write_images(folder: Path, count: int) -> None:
    """Noise that is smooth enough to be a photograph's size as JPEG."""
    random = numpy.random.default_rng(0)
    for number in range(count + 2 * CLASSES):
        split = "val" if number < 2 * CLASSES else "train"
        file = folder / split / f"n{number % CLASSES:08d}" / f"{number}.JPEG"
        file.parent.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(0, 256, (24, 24, 3), dtype=numpy.uint8)
        stream = BytesIO()
        Image.fromarray(coarse).resize((SIDE + number % 64, SIDE)).save(stream, "JPEG", quality=85)
        file.write_bytes(stream.getvalue())


def peaks(code: str, count: int, *arguments: object) -> list[int]:
    """Run this code in several processes at once; the most private memory of each in MB."""
    program = f"{PEAK}\n{code}\nprint(peak[0])"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError("a process failed")
    return [int(output.split()[-1]) for output in outputs]


def shares(images: data.ImageSet, batch: int, width: int, rounds: int) -> dict[str, float]:
    """Seconds of a batch and of a SORA step beside it."""
    loader = data.Loader(images, batch, data.Augment.parse(["resized-crop:224", "flip"]), seed=0)
    model = models.create("preactresnet18", CLASSES, image_size=224, width=width)
    method = methods.create("sora", Linf(4 / 255))
    loading, stepping = [], []
    batches = loader.epoch(0)
    next(batches)
    for _ in range(rounds):
        began = time.process_time()
        x, y, index, _ = next(batches)
        loading.append(time.process_time() - began)
        method.step(model, x, y, index=index)
        stepping.append(time.process_time() - began - loading[-1])
    best = min(loading), min(stepping)
    return {"batch_s": best[0], "step_s": best[1], "loading_share": best[0] / sum(best)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("images", 6000), ("readers", 3), ("batch", 16), ("width", 16), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        tree, root = Path(scratch) / "tree", Path(scratch) / "data"
        write_images(tree, args.images)
        idle = peaks("import sora.data, sora.methods, torch", 1)[0]
        began = time.perf_counter()
        packing = peaks(PACK, 2, tree, root)
        found: dict[str, Any] = {"images": args.images, "pack_seconds": time.perf_counter() - began}
        store = sum(file.stat().st_size for file in (root / "imagenet100").rglob("*")) / 2**20
        reading = peaks(READ, args.readers, tree, root)
        found |= {"set_mb": round(store), "idle_mb": idle, "packing_mb": packing, "reading_mb": reading}
        images = data.load("imagenet100", root).train
        found |= shares(images, args.batch, args.width, args.rounds)
    text = json.dumps(found, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
