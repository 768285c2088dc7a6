"""`sora demo`: FGSM collapses, SORA does not, in about a minute on two CPU cores."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sora import probes
from sora.cli._parse import flag, parse
from sora.cli.compare import report_failures, show
from sora.experiments.compare import train_and_compare
from sora.experiments.variants import of_methods, plan
from sora.runs import RunFolder
from sora.settings import Request

METHODS = "fgsm,sora"
CHANCE = 10.0  # per cent of ten classes


@dataclass(frozen=True)
class Flags:
    """Train FGSM and SORA side by side on scikit-learn's digits and summarise the result."""

    out: str = flag("runs/demo", "folder of the runs; finished ones are kept")
    seed: int = flag(0, "seed of both runs")
    epochs: int | None = flag(None, "epochs; default: the recipe's")
    jobs: int = flag(0, "processes at once; 0: one per core, one with a GPU")
    quiet: bool = flag(False, "print nothing while working")
    json: bool = flag(False, "print the comparison as JSON")


def run(argv: list[str]) -> int:
    """Train both, print the table and what happened, save the picture."""
    flags = parse(Flags, argv, "demo")
    folder = Path(flags.out)
    given = {"dataset": "digits", "seed": flags.seed}
    given |= {} if flags.epochs is None else {"epochs": flags.epochs}
    runs = plan(Request(given), of_methods(METHODS), seeds=1, folder=folder)
    comparison, failed = train_and_compare(runs, folder, flags.jobs, flags.quiet)
    show(comparison, folder, as_json=flags.json)
    if not flags.json and not failed:
        folders = {resolved.settings.method: RunFolder(resolved.settings.folder()) for resolved in runs}
        print()
        for name, run_folder in folders.items():
            print(story(name, comparison["methods"][name], run_folder.read_log("evals")))
        picture = folder / "demo.png"
        probe = probes.create("training", title="digits, linf eps 0.15")
        probe.picture({name: probe.measure(each) for name, each in folders.items()}, picture)
        print(f"\npicture: {picture}")
    return report_failures(failed, len(runs), folder)


def story(name: str, entry: dict[str, Any], evals: list[dict[str, Any]]) -> str:
    """Return what happened to one run, in plain words."""
    accuracy = {attack: 100 * value["mean"] for attack, value in entry["accuracy"].items()}
    titles = {"fgsm": "FGSM", "pgd10": "PGD-10"}
    shares = [f"{accuracy[key]:.0f} % against {title}" for key, title in titles.items() if key in accuracy]
    numbers = ", ".join(shares) or f"{accuracy['clean']:.0f} % without an attack"
    align = entry["pert_align"]["mean"]
    alarm = entry["alarms"][0]
    if entry["verdict"] == "overfitted":
        best = max(evals, key=lambda line: line["accuracy"]["pgd10"])
        peak = 100 * best["accuracy"]["pgd10"]
        when = f"; the alarm went off at step {alarm}" if alarm else "; no alarm went off"
        held_out = f"{peak:.0f} % under PGD-10 on held-out images"
        lost = f"Its robustness peaked in epoch {best['epoch']} ({held_out}) and was lost"
        lost = lost if peak > CHANCE else f"It was never robust (at best {held_out})"
        return (
            f"{name} overfitted catastrophically: {numbers}. {lost}{when}. PertAlign ended at {align:.2f}:"
            " the two gradients do not point the same way."
        )
    words = {"robust": "stayed robust", "suspect": "is suspect", "not robust": "is not robust"}
    word = words.get(entry["verdict"], "has no verdict")
    alarms = f"; alarm at step {alarm}" if alarm else "; no alarm"
    return f"{name} {word}: {numbers}. PertAlign ended at {align:.2f}{alarms}."
