"""`sora demo`: FGSM collapses, SORA does not, in about a minute on two CPU cores."""

from dataclasses import dataclass
from pathlib import Path

from sora import probes
from sora.cli._parse import flag, parse
from sora.cli.compare import report_failures, show
from sora.experiments.compare import train_and_compare
from sora.experiments.variants import of_methods, plan
from sora.probes.training import finding
from sora.runs import RunFolder
from sora.settings import Request

METHODS = "fgsm,sora"


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
        probe = probes.create("training")
        results = {name: probe.measure(each) for name, each in folders.items()}
        print("\nOn held-out images:")
        for name, result in results.items():
            print(f"{finding(name, result['accuracy'], result['alarms'])}.")
        picture = folder / "demo.png"
        probe.picture(results, picture)
        print(f"\npicture: {picture}")
    return report_failures(failed, len(runs), folder)
