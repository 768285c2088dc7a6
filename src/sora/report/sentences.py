"""What happened to a run, in plain English."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sora.experiments.cost import passes_of_run
from sora.report.reading import RunRecord, watched_images

TITLES = {"clean": "clean", "fgsm": "FGSM", "pgd10": "PGD-10", "pgd50": "PGD-50", "aa": "AutoAttack"}
TONES = {"robust": "good", "not robust": "warn", "suspect": "warn", "overfitted": "bad"}
MEANING = {  # the rules of `sora.evaluation.scores.verdict` in words
    "robust": "It is robust: under PGD-10 it keeps at least half of its FGSM accuracy.",
    "not robust": "It is not robust: without an attack or under PGD-10 it is no better than chance.",
    "suspect": "Its robustness is in doubt: PGD-10 leaves less than half of its FGSM accuracy, or a masking "
    "test failed.",
    "overfitted": "It overfitted catastrophically: it withstands the single step of FGSM, but not PGD-10.",
}


class Verdict(NamedTuple):
    """A verdict: one word, its tone (good, warn, bad or none), and sentences."""

    word: str
    tone: str
    text: str


def title_of(attack: str) -> str:
    """An attack's name in a heading."""
    return TITLES.get(attack, attack)


def verdict(run: RunRecord) -> Verdict:
    """The verdict of a run, and what its logs say about how it came about."""
    if not run.summary:
        return Verdict("unfinished", "none", _progress(run))
    word = run.summary.get("co", {}).get("verdict")
    if word is None:
        text = "There is no verdict: it takes accuracies under FGSM and PGD-10."
        return Verdict("no verdict", "none", f"{text} {_watch(run)}")
    text = MEANING.get(word, f"The verdict is {word!r}.")
    peak = _peak(run) if word == "overfitted" else ""
    return Verdict(str(word), TONES.get(word, "none"), " ".join(filter(None, (text, peak, _watch(run)))))


def _progress(run: RunRecord) -> str:
    rows = run.logs.get("metrics", [])
    if not rows:
        return "It has not logged a step yet."
    last = rows[-1]
    return f"It has logged {last.get('step')} steps, up to epoch {last.get('epoch')}. {_watch(run)}"


def _peak(run: RunRecord) -> str:
    rows = [row for row in run.logs.get("evals", []) if row.get("accuracy", {}).get("pgd10") is not None]
    if not rows:
        return ""
    best = max(rows, key=lambda row: float(row["accuracy"]["pgd10"]))
    highest = float(best["accuracy"]["pgd10"])
    share = f"{100 * highest:.0f} % under PGD-10 on {watched_images([best])}"
    classes = (run.summary.get("data") or {}).get("classes")
    if classes and highest <= 1 / len(classes):
        return f"It was never robust (at best {share})."
    return f"Its robustness peaked in epoch {best['epoch']} ({share})."


def _watch(run: RunRecord) -> str:
    """What PertAlign and the guard say."""
    alarms = [row["step"] for row in run.logs.get("events", []) if row.get("event") == "alarm"]
    rows = [row for row in run.logs.get("metrics", []) if row.get("pert_align") is not None]
    # The mean of the last steps, as in tables; an unfinished run has only its log.
    last = (run.summary.get("pert_align") or {}).get("last")
    value = last if last is not None or not rows else rows[-1]["pert_align"]
    aligned = f"PertAlign ended at {value:.2f}" if value is not None else "PertAlign was not logged"
    if not alarms:
        possible = run.summary.get("co", {}).get("watched_steps") != 0
        return f"{aligned}; no alarm was {'raised' if possible else 'possible'}."
    more = f", and {len(alarms) - 1} more later" if len(alarms) > 1 else ""
    return f"{aligned}; the first alarm was raised at step {alarms[0]}{more}."


def summary_line(runs: Sequence[RunRecord]) -> str:
    """How many runs there are of what, and their verdicts, in one sentence."""
    words = Counter(_word(run) for run in runs)
    order = [*TONES, "no verdict", "unfinished"]
    parts = [
        f"{words[word]} {word}" for word in sorted(words, key=lambda w: order.index(w) if w in order else 99)
    ]
    sets = sorted({str(run.summary["dataset"]) for run in runs if run.summary.get("dataset")})
    where = f" on {_listed(sets)}" if 0 < len(sets) < 5 else f" on {len(sets)} data sets" if sets else ""
    return f"{len(runs)} runs{where}: {_listed(parts)}."


def _word(run: RunRecord) -> str:
    if not run.summary:
        return "unfinished"
    co = run.summary.get("co")
    return str((co.get("verdict") if isinstance(co, dict) else None) or "no verdict")


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else ""


def cost_facts(run: RunRecord) -> list[tuple[str, str]]:
    """What training cost, as pairs of a name and a text."""
    summary: Mapping[str, Any] = run.summary
    machine = summary.get("machine") or {}
    facts = [
        ("Training time", _seconds(summary.get("train_seconds"))),
        ("Images per second", _whole(summary.get("images_per_second"))),
        ("Peak memory", f"{_whole(summary.get('peak_memory_mb'))} MB"),
        *_passes(run),
        ("Parameters", _whole(summary.get("parameters"))),
        ("Training images", _whole(summary.get("n_train"))),
        ("Machine", str(machine.get("gpu") or machine.get("cpu") or "")),
        ("torch", str((summary.get("versions") or {}).get("torch", ""))),
    ]
    return [(name, text) for name, text in facts if text and not text.startswith("-")]


def _passes(run: RunRecord) -> list[tuple[str, str]]:
    passes = passes_of_run(run.folder, run.summary)
    return [("Forward passes per step", passes.forwards), ("Backward passes per step", passes.backwards)]


def _seconds(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return "-"
    if value < 120:
        return f"{value:.0f} s"
    hours, minutes = divmod(round(value / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _whole(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, (int, float)) else "-"
