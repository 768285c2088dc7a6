"""Finished runs of `sora train` or `sora compare` as runs of the corpus.

    python benchmarks/alarm/snapshots.py runs/few-images-eps/*/ --work /tmp/cifar10
    python benchmarks/alarm/corpus.py --work /tmp/cifar10 --to cifar10

PertAlign of every step comes from the log, so a run needs `--log-every 1`. Accuracies and alignments are
measured on the weights that the run kept after each epoch, on training images that it did not train on.
Interrupted, the same command continues.
"""

import argparse
from pathlib import Path

import torch
from rich.progress import track

from runs import IMAGES, measure_unseen, write
from sora.data import split, stratified
from sora.data.splits import divide
from sora.runs import RunFolder, describe_model, load_data, load_model


def rows_of(run: RunFolder) -> list[dict[str, float]]:
    """The numbers of all steps, with the measurements of those whose weights were kept."""
    settings = run.read_settings()
    dataset = load_data(run, settings)
    images = split(dataset, holdout=settings.holdout).train
    if settings.limit_train is not None:
        images = divide(images, settings.limit_train)[1]
    chosen = stratified(images.labels, IMAGES, seed=0)
    x, y = next(images.subset(chosen).batches(IMAGES, torch.device("cpu")))
    rows = {int(line["step"]): line for line in run.read_log("metrics")}
    for step, file in run.snapshots.files().items():
        model = load_model(describe_model(settings, dataset), file, None).eval()
        rows[step] = rows[step] | measure_unseen(model, x, y, settings.threat())
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, help="run folders")
    parser.add_argument("--work", type=Path, required=True, help="folder of the files of single runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    for path in track(args.folders):
        name = f"{path.parent.name}-{path.name}"
        target, run = args.work / f"{name}.csv.gz", RunFolder(path)
        if target.exists() or not run.is_finished():
            continue
        settings = run.read_settings()
        setting = name.removesuffix(f"-s{settings.seed}")
        write(target, (settings.method, setting, settings.seed), rows_of(run))


if __name__ == "__main__":
    main()
