"""Whether two run folders, evaluations or packed data sets hold the same results, apart from timing."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LOGS = ("metrics", "evals", "events", "monitors")
_SUMMARY = ("accuracy", "attacks", "weights", "threat", "co", "pert_align", "epochs", "n_train", "seed")
_RECORD = ("accuracy", "attacks", "threat", "n", "per_class", "predictions", "worst_case", "warnings")
_COMPARISON = ("dataset", "model", "threat", "n_test")


def run_differences(reference: Path, run: Path) -> list[str]:
    """Names of what differs between two finished runs; empty if nothing does."""
    names = ["model.safetensors", *(f"{log}.jsonl" for log in LOGS)]
    snapshots = {path.name for folder in (reference, run) for path in (folder / "snapshots").glob("step-*")}
    names += [f"snapshots/{name}" for name in sorted(snapshots)]
    found = [name for name in names if _bytes(reference / name) != _bytes(run / name)]
    if _chosen(reference / "summary.json", _SUMMARY) != _chosen(run / "summary.json", _SUMMARY):
        found.append("summary.json")
    for name in ("best", "last_good"):
        path = f"checkpoints/{name}.safetensors"
        if _tensors(reference / path) != _tensors(run / path):
            found.append(path)
    return found + leftovers(run)


def leftovers(folder: Path) -> list[str]:
    """Temporary files that nobody has removed."""
    files = (path for path in folder.rglob("*") if path.name.startswith(".") and "tmp" in path.name)
    return [f"left behind: {path.relative_to(folder)}" for path in files]


def evaluation_differences(reference: Path, run: Path) -> list[str]:
    """What differs between the evaluation records of two folders."""
    records = [json.loads((folder / "evaluation.json").read_text()) for folder in (reference, run)]
    ours, theirs = ([{key: r.get(key) for key in _RECORD} for r in each] for each in records)
    return [] if ours == theirs else ["evaluation.json"]


def comparison_differences(reference: Path, folder: Path) -> list[str]:
    """What differs between two comparisons and their runs."""
    tables = [json.loads((place / "comparison.json").read_text()) for place in (reference, folder)]
    facts = [
        {key: table[key] for key in _COMPARISON}
        | {name: (entry["accuracy"], entry["verdicts"]) for name, entry in table["methods"].items()}
        for table in tables
    ]
    found = [] if facts[0] == facts[1] else ["comparison.json"]
    for path in sorted(reference.glob("*/summary.json")):
        name = path.parent.name
        found += [f"{name}/{what}" for what in run_differences(reference / name, folder / name)]
    return found


def store_differences(reference: Path, root: Path) -> list[str]:
    """What differs between two folders of packed data sets."""
    kinds = ("*.npy", "meta.json", "origin")
    files = {str(f.relative_to(place)) for place in (reference, root) for k in kinds for f in place.rglob(k)}
    found = [name for name in sorted(files) if _bytes(reference / name) != _bytes(root / name)]
    return found + leftovers(root)


def tree_state(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file below a folder, to see whether anything was touched."""
    found = {}
    for path in folder.rglob("*"):
        facts = path.lstat()
        found[str(path.relative_to(folder))] = (facts.st_size if path.is_file() else 0, facts.st_mtime_ns)
    return found


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _chosen(path: Path, keys: Iterable[str]) -> dict[str, Any]:
    content = json.loads(path.read_text())
    return {key: content.get(key) for key in keys}


def _tensors(path: Path) -> dict[str, bytes] | None:
    """The tensors of a checkpoint; its header holds times."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.exists():
        return None
    try:
        return {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        return {str(error): b""}
