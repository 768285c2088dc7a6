"""MedMNIST's customary numbers of finished runs: accuracy, balanced accuracy and AUC of test images.

    python benchmarks/medmnist.py RUN [RUN ...] [--limit N]

Clean images without an attack. AUC is the mean over the classes of the area under the ROC curve of each class
against the rest, as in MedMNIST's own evaluator.
"""

import argparse

import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from sora.evaluation.subject import subject_of_run

BATCH = 500


def row(run: str, limit: int, data_dir: str | None) -> str:
    """Return the line of a table for one run."""
    subject = subject_of_run(run, data_dir=data_dir)
    images, _ = subject.images(limit)
    positions = torch.arange(len(images)).split(BATCH)
    with torch.no_grad():
        outputs = [subject.model(images.gather(part).float().div_(255)) for part in positions]
    shares, labels = torch.cat(outputs).softmax(1).numpy(), images.labels.numpy()
    predictions = shares.argmax(1)
    accuracy = (predictions == labels).mean()
    balanced = balanced_accuracy_score(labels, predictions)
    auc = roc_auc_score(labels, shares, multi_class="ovr", average="macro")
    return f"| {run} | {len(labels)} | {accuracy:.1%} | {balanced:.1%} | {auc:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--limit", type=int, default=0, help="test images, class-balanced; 0: all")
    parser.add_argument("--data-dir")
    args = parser.parse_args()
    print("| run | n | accuracy | balanced accuracy | AUC |\n| --- | --- | --- | --- | --- |")
    for run in args.runs:
        print(row(run, args.limit, args.data_dir))


if __name__ == "__main__":
    main()
