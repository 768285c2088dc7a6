"""Trained models outside this package: files that other programs load, each measured again after writing."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sora._files import new_folder, write_json
from sora.errors import not_allowed
from sora.evaluation import BATCH, evaluate
from sora.evaluation.examples import as_examples
from sora.evaluation.subject import Subject, subject_of_run
from sora.export.formats import FORMATS, Source
from sora.runs import RunFolder, build_model, load_weights
from sora.runs.facts import versions

IMAGES = 500  # that an export is measured on by default, at most
ATTACKS = ("clean", "fgsm", "pgd10")


@dataclass(frozen=True)
class Exported:
    """What was written, and how it compares with the model of the run."""

    folder: Path
    main: Path  # the file that another program loads; for `hub` the folder
    report: dict[str, Any]  # what `export.json` holds


def export(
    run: str | Path,
    to: str,
    out: str | Path | None = None,
    *,
    model: str | None = None,
    limit: int | None = None,
    data_dir: str | None = None,
) -> Exported:
    """Write the model of a run in another format, load it again and compare it with the original.

    Beside the model, `export.json` holds the comparison and `adversarial.npz` the attacked images that were
    replayed, as `sora evaluate --save-adversarial` writes them.

    Args:
        run: The run folder, or `zoo:NAME`.
        to: One of `FORMATS`.
        out: The folder to write, which must be new or empty; by default inside the run folder, for a model
            of the zoo `runs/zoo-NAME/export`.
        model: For a run with a model of your own: its `package.module:function`, repeated.
        limit: Number of test images to compare on, class-balanced; by default 500, or all if there are fewer.
        data_dir: Folder of the data sets.
    """
    if to not in FORMATS:
        raise not_allowed("format", to, FORMATS)
    FORMATS[to].check()
    source = RunFolder(run)
    folder = Path(out) if out is not None else source.exports / to
    with new_folder(folder) as scratch:
        subject = subject_of_run(str(run), model=model, data_dir=data_dir)
        description = source.read_model()
        built = build_model(description)
        load_weights(built, source.weights)
        total = len(subject.dataset.test)
        images, chosen = subject.images(min(IMAGES, total) if limit is None else limit)
        example = as_examples(images).take(torch.arange(2), torch.device("cpu"))[0]
        name = FORMATS[to].write(scratch, Source(subject, description, built.eval(), example))
        report = {"format": to, "file": name, "bytes": _size(scratch), "versions": versions()}
        report |= measure(subject, images, chosen, FORMATS[to].open(scratch), scratch / "adversarial.npz")
        write_json(scratch / "export.json", report)
    return Exported(folder, folder / name, report)


def measure(
    subject: Subject,
    images: Any,
    chosen: dict[str, Any],
    exported: Callable[[Tensor], Tensor],
    attacked: Path,
) -> dict[str, Any]:
    """Compare an exported model with the original, also on images attacked with that and stored in a file."""
    (threat,) = subject.threats()
    result = evaluate(subject.model, images, threat, ATTACKS, keep_inputs=True)
    subject.save_adversarial(str(attacked), result, chosen)
    clean = as_examples(images).take(torch.arange(result.n), torch.device("cpu"))[0]
    accuracy, differences, changed = {}, {}, {}
    for name in ATTACKS:
        x = result.inputs.get(name, clean)
        before, after = _logits(subject.model, x), _logits(exported, x)
        accuracy[name] = int((after.argmax(1) == result.labels).sum()) / result.n
        differences[name] = float((before - after).abs().max())
        changed[name] = int((before.argmax(1) != after.argmax(1)).sum())
    return {
        "n": result.n,
        "threat": {"norm": threat.norm, "eps": threat.eps},
        "attacks": {name: result.settings[name] for name in ATTACKS},
        "accuracy": {"run": result.accuracy, "exported": accuracy},
        "largest_logit_difference": differences,
        "changed_predictions": changed,
    }


def _logits(model: nn.Module | Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(part).float() for part in torch.split(x, BATCH)])


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
