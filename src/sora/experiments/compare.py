"""Several variants on the same seeds, or finished runs from anywhere: means over seeds, verdicts, cost."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sora._files import write_json, write_text
from sora._html import html_table
from sora.errors import RunError, UserError
from sora.evaluation.records import with_later_results
from sora.evaluation.scores import VERDICTS
from sora.experiments.cost import passes_of_run
from sora.experiments.engines import Engine
from sora.experiments.grid import run_grid
from sora.experiments.tables import PENDING, Cell, cells_of, csv_text, markdown_table
from sora.experiments.variants import LONGEST
from sora.runs import RunFolder, find_runs, unique_labels
from sora.runs.facts import machine_line
from sora.runs.resume import settings_hash
from sora.settings import Resolved
from sora.threat import eps_text

COSTS = ("train_seconds", "images_per_second", "peak_memory_mb")
COMMON = ("dataset", "model", "threat")  # facts that a table states once if all its rows share them


class Comparison(dict[str, Any]):
    """What `comparison.json` holds: facts that all rows share, and under `methods` the rows by name."""

    def _repr_html_(self) -> str:
        return html_table("", *table(self), [protocol(self)])


def train_and_compare(
    runs: Sequence[Resolved],
    folder: Path,
    jobs: int = 0,
    quiet: bool = False,
    engine: Engine | None = None,
) -> tuple[Comparison, dict[str, str]]:
    """Compute what is missing; write and return the comparison of finished runs, and the errors of others."""
    grid = run_grid(runs, jobs, quiet=quiet, engine=engine)
    failed = {job.name: job.error for job in grid if job.error}
    finished = [job for job in grid if job.folder.is_finished()]
    if not finished:
        reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise RunError(f"no run finished ({reasons})")
    summaries = [with_later_results(job.folder) for job in finished]
    planned = [job.resolved.settings for job in finished]
    names = [_row_name(settings.variant, settings.method, settings.guard) for settings in planned]
    comparison = compare_summaries(summaries, names, [job.folder for job in finished])
    write(comparison, folder)
    return comparison, failed


def compare(*runs: str | Path) -> Comparison:
    """Compare finished runs in one table; those of one variant with different seeds share a row.

    Args:
        *runs: Run folders, folders of runs, or `zoo:NAME`.
    """
    folders = find_runs(runs)
    summaries = [_finished_summary(folder) for folder in folders]
    return compare_summaries(summaries, row_names(folders, summaries), folders)


def _finished_summary(folder: RunFolder) -> dict[str, Any]:
    folder.read_config()  # raises if this is not a run folder
    run = f"the run in {folder.path}"
    if not folder.is_finished():
        raise UserError(f"{run} is not finished; continue it with --resume, or name the finished runs")
    summary = with_later_results(folder)
    if not summary["attacks"]:
        raise UserError(f"{run} has no accuracies; `sora evaluate {folder.path}` adds them")
    return summary


def row_names(folders: Sequence[RunFolder], summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the row of each run, one per variant; the folder tells apart variants with the same name."""
    keys = [variant_key(*pair) for pair in zip(folders, summaries, strict=True)]
    groups: dict[tuple[str, ...], dict[int, int]] = {}
    for position, (key, summary) in enumerate(zip(keys, summaries, strict=True)):
        seed = summary["seed"]
        other = groups.setdefault(key, {}).setdefault(seed, position)
        if other != position:
            raise UserError(
                f"{folders[other].path} and {folders[position].path} are the same run (settings and seed "
                f"{seed}); leave one out"
            )
    shared, own_labels = Counter(key[0] for key in groups), unique_labels(folders)
    names: dict[tuple[str, ...], str] = {}
    for key, seeds in groups.items():
        first = next(iter(seeds.values()))
        label = own_labels[first] if len(seeds) == 1 else folders[first].path.resolve().parent.name
        name = key[0] if shared[key[0]] == 1 else f"{label} ({key[0]})"
        taken, number = set(names.values()), 1
        while (numbered := f"{name} #{number}" if number > 1 else name) in taken:
            number += 1
        names[key] = numbered
    return [names[key] for key in keys]


def variant_key(folder: RunFolder, summary: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the runs of one row share: the name, every setting but the seed, and the images."""
    settings = dataclasses.replace(folder.read_settings(), seed=0)
    images = (summary.get("data") or {}).get("fingerprint", "")
    return row_name(summary), settings_hash(settings), str(images)


def compare_summaries(
    summaries: Sequence[Mapping[str, Any]], names: Sequence[str], folders: Sequence[RunFolder]
) -> Comparison:
    """Group runs, given by their summaries with later results, by the rows that `names` has for them."""
    rows: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        rows.setdefault(name, []).append(position)
    versions = [summary["versions"] for summary in summaries]
    shared = {key: _common([summary[key] for summary in summaries]) for key in COMMON}
    return Comparison(
        **shared,
        parameters=_common([summary.get("parameters") for summary in summaries]),
        n_test=_common([_n_test(summary) for summary in summaries]),
        versions={
            key: value for key, value in versions[0].items() if all(v.get(key) == value for v in versions)
        },
        machine=_common([summary.get("machine") for summary in summaries]),
        methods={
            name: _aggregate([summaries[each] for each in own], folders[own[0]]) for name, own in rows.items()
        },
    )


def _common(values: Sequence[Any]) -> Any:
    """Return the value that all share, None if they differ."""
    return values[0] if all(value == values[0] for value in values) else None


def _n_test(summary: Mapping[str, Any]) -> int:
    return max(int(attack["n"]) for attack in summary["attacks"].values())


def row_name(summary: Mapping[str, Any]) -> str:
    """Return a run's variant, else its method, with the guard's action if it may change training."""
    return _row_name(summary.get("variant"), str(summary["method"]), summary["co"]["guard"])


def _row_name(variant: object, method: str, guard: str) -> str:
    if variant:
        return " ".join(str(variant).split())[:LONGEST]  # it may come from a hostile file
    return method if guard in ("off", "warn") else f"{method} + {guard}"


def _aggregate(runs: Sequence[Mapping[str, Any]], folder: RunFolder) -> dict[str, Any]:
    """Return a row: what its runs share, and a cell for each value; `folder` is that of the first run."""
    verdicts = [run["co"]["verdict"] for run in runs]
    first, accuracies = runs[0], cells_of([run["accuracy"] for run in runs])

    def summary(values: Iterable[float | None]) -> dict[str, Any]:
        return Cell(tuple(values)).summary()

    return {
        "method": first["method"],
        "variant": first.get("variant"),
        **{key: first[key] for key in COMMON},
        "n_test": _n_test(first),
        "seeds": [run["seed"] for run in runs],
        "epochs": first["epochs"],
        "accuracy": {key: cell.summary() for key, cell in accuracies.items()},
        "verdict": min(verdicts, key=lambda verdict: VERDICTS.index(verdict) if verdict in VERDICTS else 99),
        "verdicts": verdicts,
        "pert_align": summary(run["pert_align"]["last"] for run in runs),
        "alarms": [run["co"]["events"][0]["step"] if run["co"]["events"] else None for run in runs],
        **passes_of_run(folder, *runs)._asdict(),
        **{key: summary(run.get(key) for run in runs) for key in COSTS},
    }


def table(comparison: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return column heads and rows, as text; a column for each fact in which the rows differ."""
    entries = comparison["methods"]
    attacks, titles = attacks_of(entries.values()), {"threat": "eps", "n_test": "n"}
    facts = [key for key in (*COMMON, "n_test") if comparison.get(key) is None]
    head = [_first_column(entries), *(titles.get(key, key) for key in facts)]
    head += [*(f"{name} %" for name in attacks), "verdict", "PertAlign"]
    head += ["alarm at step", "forwards", "train s", "peak MB"]
    rows = []
    for name, entry in entries.items():
        own = (radius(entry[key]) if key == "threat" else str(entry[key]) for key in facts)
        rows.append([name, *own, *texts_of(entry, attacks)])
    return head, rows


def texts_of(entry: Mapping[str, Any], attacks: Sequence[str]) -> list[str]:
    """Return a row as text: accuracies, verdict, PertAlign, alarms, forward passes, time, memory."""
    alarms = [str(step) for step in entry["alarms"] if step is not None]
    return [
        *(_plus_minus(entry["accuracy"].get(attack), 100, 1) for attack in attacks),
        _verdicts(entry["verdicts"]),
        _plus_minus(entry["pert_align"], 1, 2),
        ", ".join(alarms) or PENDING,
        entry["forwards"],
        _plus_minus(entry["train_seconds"], 1, 0),
        _plus_minus(entry["peak_memory_mb"], 1, 0),
    ]


def _plus_minus(value: Mapping[str, Any] | None, factor: float, digits: int) -> str:
    return Cell(tuple(value["values"]) if value else ()).ours(factor=factor, digits=digits)


def attacks_of(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return all attacks that at least one of the entries was evaluated under."""
    return list(dict.fromkeys(name for entry in entries for name in entry["accuracy"]))


def _first_column(entries: Mapping[str, Any]) -> str:
    return "variant" if any(entry.get("variant") for entry in entries.values()) else "method"


def radius(threat: Mapping[str, Any]) -> str:
    """Return a threat's eps as text: `8/255` for linf, `l2 0.5` for another norm."""
    text = eps_text(threat["eps"])
    return text if threat["norm"] == "linf" else f"{threat['norm']} {text}"


def _verdicts(verdicts: Sequence[str | None]) -> str:
    """Return the runs' verdicts in a few words; `-` without FGSM and PGD-10, which a verdict needs."""
    counts = Counter(verdict for verdict in verdicts if verdict is not None)
    if len(counts) <= 1:
        return next(iter(counts), PENDING)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def markdown(comparison: Mapping[str, Any]) -> str:
    """Return the table as Markdown, with the settings under it."""
    return f"{markdown_table(*table(comparison))}\n\n{protocol(comparison)}\n"


def protocol(comparison: Mapping[str, Any]) -> str:
    """Say in one sentence what the numbers are, as far as it holds for every row."""
    counts = {len(entry["seeds"]) for entry in comparison["methods"].values()}
    threat, several = comparison["threat"], max(counts) > 1
    seeds = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    machine, torch = comparison["machine"], comparison["versions"].get("torch")
    model, parameters = comparison["model"], comparison.get("parameters")
    parts = [
        comparison["dataset"],
        f"{model} ({parameters:,} parameters)" if model and parameters else model,  # width and options decide
        threat and f"{threat['norm']} eps {eps_text(threat['eps'])}",
        comparison["n_test"] and f"n = {comparison['n_test']} test images",
        f"{seeds} seed{'s' if several else ''}{' (mean ± sample standard deviation)' if several else ''}",
    ]
    made_on = [torch and f"torch {torch}", machine and machine_line(machine)]
    groups = [", ".join(filter(None, group)) for group in (parts, made_on)]
    return f"{'; '.join(filter(None, groups))}."


def write(comparison: Mapping[str, Any], folder: Path) -> None:
    """Write `comparison.json`, `comparison.csv`, and the table as text in `comparison.md`."""
    write_json(folder / "comparison.json", comparison)
    write_text(folder / "comparison.md", markdown(comparison))
    write_text(folder / "comparison.csv", _csv(comparison))


def _csv(comparison: Mapping[str, Any]) -> str:
    entries = comparison["methods"]
    attacks, first = attacks_of(entries.values()), _first_column(entries)
    head = [first, *(f"{attack}_{key}" for attack in attacks for key in ("mean", "std", "seeds"))]
    head += ["verdict", "pert_align", "alarm_steps", "forwards", "train_seconds", "peak_memory_mb", "seeds"]
    head += ["dataset", "model", "norm", "eps", "n", *(["method"] if first == "variant" else [])]
    lines: list[list[Any]] = [head]
    for name, entry in entries.items():
        line: list[Any] = [name]
        for attack in attacks:
            value = entry["accuracy"].get(attack) or Cell().summary()
            line += [value["mean"], value["std"], sum(each is not None for each in value["values"])]
        alarms = " ".join(str(step) for step in entry["alarms"] if step is not None)
        verdicts = entry["verdict"] and _verdicts(entry["verdicts"])
        line += [verdicts, entry["pert_align"]["mean"], alarms, entry["forwards"]]
        line += [entry[key]["mean"] for key in ("train_seconds", "peak_memory_mb")]
        line += [" ".join(map(str, entry["seeds"])), entry["dataset"], entry["model"]]
        line += [entry["threat"]["norm"], entry["threat"]["eps"], entry["n_test"]]
        lines.append(line + ([entry["method"]] if first == "variant" else []))
    return csv_text(lines)
