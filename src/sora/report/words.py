"""What the page says about runs in words and tables: verdicts, accuracies, cost, settings, the comparison."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from sora.attacks.autoattack import is_autoattack
from sora.experiments.compare import attacks_of, radius, texts_of
from sora.experiments.cost import passes_of_run
from sora.probes import Result
from sora.probes._records import ComparedRow, Missing, RunRecord, Setting, alarms_of, title_of
from sora.probes._runs import is_outdated
from sora.probes.training import watched_images
from sora.settings import GROUPS

TONES = {"robust": "good", "not robust": "warn", "suspect": "warn", "overfitted": "bad"}
MEANING = {  # the rules of `sora.evaluation.scores.verdict` in words
    "robust": "It is robust: under PGD-10 it keeps at least half of its FGSM accuracy.",
    "not robust": "It is not robust: without an attack or under PGD-10 it is no better than chance.",
    "suspect": "Its robustness is in doubt: PGD-10 leaves less than half of its FGSM accuracy, or a masking "
    "test failed.",
    "overfitted": "It overfitted catastrophically: it withstands the single step of FGSM, but not PGD-10.",
}
WORDS = ("Method", "Data set", "Network", "Verdict")  # columns without numbers
MEASURED = ("Verdict", "PertAlign", "First alarm", "Forwards", "Train s", "Peak MB")  # columns after n
FACTS = ("Data set", "Network", "eps", "Seeds", "n")  # columns that a table drops if all rows share them
# The probes whose stored results the page shows, what they are called, and their headings.
PROBES = {
    "eps-curve": ("eps curve", "Accuracy over eps"),
    "landscape": ("loss landscape", "Loss landscape"),
    "samples": ("attacked images", "Attacked images"),
}


class Verdict(NamedTuple):
    """A verdict: one word, its tone (good, warn, bad or none), and sentences."""

    word: str
    tone: str
    text: str


def verdict(run: RunRecord) -> Verdict:
    """Return the verdict of a run, and what its logs say about how it came about."""
    if not run.summary:
        text, rows = "It has not logged a step yet.", run.logs["metrics"]
        if rows:
            logged = f"It has logged {rows[-1].get('step')} steps, up to epoch {rows[-1].get('epoch')}."
            text = f"{logged} {_watch(run)}"
        return Verdict("unfinished", "none", text)
    word = run.summary.get("co", {}).get("verdict")
    if word is None:
        text = "There is no verdict: it takes accuracies under FGSM and PGD-10."
        return Verdict("no verdict", "none", f"{text} {_watch(run)}")
    text = MEANING.get(word, f"The verdict is {word!r}.")
    peak = _peak(run) if word == "overfitted" else ""
    return Verdict(str(word), TONES.get(word, "none"), " ".join(filter(None, (text, peak, _watch(run)))))


def _peak(run: RunRecord) -> str:
    rows = [row for row in run.logs["evals"] if row.get("accuracy", {}).get("pgd10") is not None]
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
    """Return what PertAlign and the guard say."""
    alarms = alarms_of(run.logs["events"])
    logged = [row["pert_align"] for row in run.logs["metrics"] if row.get("pert_align") is not None]
    # The mean of the last steps, as in tables; an unfinished run has only its log.
    last = (run.summary.get("pert_align") or {}).get("last")
    value = last if last is not None or not logged else logged[-1]
    aligned = f"PertAlign ended at {value:.2f}" if value is not None else "PertAlign was not logged"
    if not alarms:
        possible = run.summary.get("co", {}).get("watched_steps") != 0
        return f"{aligned}; no alarm was {'raised' if possible else 'possible'}."
    more = f", and {len(alarms) - 1} more later" if len(alarms) > 1 else ""
    return f"{aligned}; the first alarm was raised at step {alarms[0]}{more}."


def answers(setting: Setting) -> list[tuple[str, str, str, str]]:
    """Return question, answer, reason and tone: which method, how robust, and whether to trust that."""
    means = setting.means(setting.attack)
    name = max(means, key=lambda name: means[name])
    [row] = [row for row in setting.rows if row.name == name]
    others = "; ".join(f"{own.name}: {own.entry['verdict']}" for own in setting.rows if own is not row)
    best = f"has the highest accuracy under {title_of(setting.attack)} of {len(means)} ({others})"
    best = best if others else "trained"
    cases = [(_worst_case(records), number) for number, records in enumerate(map(_evaluations, row.runs))]
    (share, low, high, n, attack), number = min(cases)
    seed = f", in the lowest of {len(cases)} seeds" if len(cases) > 1 else ""
    robust = f"of {n:,} images withstand {title_of(attack)} and the other attacks{seed}; 95 % interval"
    return [
        ("Which method?", name, f"{best} on {setting.name}.", ""),
        ("How robust?", f"{100 * share:.1f} %", f"{robust} {100 * low:.1f} to {100 * high:.1f}.", ""),
        ("Can that be trusted?", *_trusted(row.runs[number])),
    ]


def _evaluations(run: RunRecord) -> list[Mapping[str, Any]]:
    """Return the run's summary and all later evaluations of its weights at its own radius."""
    own = run.summary
    later = run.attempt("evaluation.json", run.folder.read_evaluations, [])
    weights = [own.get("fingerprint", {}).get("weights"), own["threat"]]
    return [own, *(each for each in later if [each["fingerprint"]["weights"], each["threat"]] == weights)]


def _worst_case(records: Sequence[Mapping[str, Any]]) -> tuple[float, float, float, int, str]:
    """Return the lowest share of images that withstood all attacks of a record, with its interval."""
    cases = []
    for own in records:
        name = min(own["accuracy"], key=lambda attack: own["accuracy"][attack])
        case = own.get("worst_case") or {"accuracy": own["accuracy"][name], **own["attacks"][name]}
        cases.append((case["accuracy"], case["low"], case["high"], case["n"], name))
    return min(cases)


def _trusted(run: RunRecord) -> tuple[str, str, str]:
    records, verdict = _evaluations(run), run.summary.get("co", {}).get("verdict")
    tests = [test for own in records for test in own.get("trust", ())]
    failed = ", ".join(str(test["test"]) for test in tests if test["outcome"] == "failed")
    if failed or verdict in ("overfitted", "suspect"):
        return "No", f"Failed masking tests: {failed}." if failed else MEANING[verdict], "bad"
    strong = any(is_autoattack(name) for own in records for name in own["accuracy"])
    if strong and tests:
        return "Nothing speaks against it", "AutoAttack was run, and no masking test failed.", "good"
    flags = f"{'' if strong else ' --attacks aa'}{'' if tests else ' --trust'}"
    what = " and ".join(["AutoAttack"] * (not strong) + ["the masking tests"] * (not tests))
    return "Not yet", f"It is an upper bound until {what} are run: sora evaluate {run.path}{flags}", "warn"


def facts_of(run: RunRecord) -> list[str]:
    """Return method, data set, model, threat, epochs and seed, in a few words each."""
    summary, config = run.summary, run.config
    if summary:
        threat = f"{summary['threat']['norm']} eps {radius(summary['threat']).split()[-1]}"
        facts = [summary["method"], summary["dataset"], summary["model"], threat]
        return [*map(str, facts), f"{summary['epochs']} epochs", f"seed {summary['seed']}"]
    values = {**config, **config.get("data", {}), **config.get("network", {}), **config.get("threat", {})}
    return [str(values[key]) for key in ("method", "dataset", "model") if values.get(key)]


def accuracies_of(run: RunRecord) -> list[dict[str, Any]]:
    """Return one row per attack, with its interval, number of images and settings."""
    rows = []
    for name, share in (run.summary.get("accuracy") or {}).items():
        about = run.summary["attacks"][name]
        details = [f"eps {about['eps']:.4g}" if about.get("eps") else "", _steps(about)]
        rows.append(
            {
                "attack": title_of(name),
                "percent": f"{100 * share:.1f}",
                "low": 100 * about["low"],
                "width": 100 * (about["high"] - about["low"]),
                "share": 100 * share,
                "interval": f"{100 * about['low']:.1f} to {100 * about['high']:.1f}",
                "n": f"{about['n']:,}",
                "details": ", ".join(filter(None, details)),
            }
        )
    return rows


def _steps(about: Mapping[str, Any]) -> str:
    steps, restarts = about.get("steps") or 0, about.get("restarts") or 1
    size = f" of {about['step_size']:.4g}" if about.get("step_size") else ""
    text = f"{steps} step{'s' if steps != 1 else ''}{size}" if steps else ""
    return text + (f", {restarts} restarts" if restarts > 1 else "")


def cost_of(run: RunRecord) -> list[tuple[str, str]]:
    """Return what training cost, as pairs of a name and a text."""
    summary: Mapping[str, Any] = run.summary
    machine, passes = summary.get("machine") or {}, passes_of_run(run.folder, run.summary)
    facts = [
        ("Training time", _seconds(summary.get("train_seconds"))),
        ("Images per second", _integer(summary.get("images_per_second"))),
        ("Peak memory", f"{_integer(summary.get('peak_memory_mb'))} MB"),
        ("Forward passes per step", passes.forwards),
        ("Backward passes per step", passes.backwards),
        ("Parameters", _integer(summary.get("parameters"))),
        ("Training images", _integer(summary.get("n_train"))),
        ("Machine", str(machine.get("gpu") or machine.get("cpu") or "")),
        ("torch", str((summary.get("versions") or {}).get("torch", ""))),
    ]
    return [(name, text) for name, text in facts if text and not text.startswith("-")]


def _seconds(value: Any) -> str:
    if not isinstance(value, (int, float)):
        return "-"
    if value < 120:
        return f"{value:.0f} s"
    hours, minutes = divmod(round(value / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _integer(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, (int, float)) else "-"


def settings_by_group(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings by group, each with its origin."""
    origins = config.get("origins") or {}
    groups = []
    for name in GROUPS:
        values = config.get(name)
        if not isinstance(values, dict):
            continue
        flat = {**values, **{f"set.{key}": value for key, value in (values.get("set") or {}).items()}}
        flat.pop("set", None)
        rows = [(key, _shown(value), str(origins.get(key, "default"))) for key, value in flat.items()]
        groups.append({"name": name, "rows": rows})
    return groups


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "-" if value is None else str(value)


def note_missing(run: RunRecord) -> dict[str, Result]:
    """Note what a run lacks, with the commands that make it; return the results of probes that it has."""
    if not run.folder.is_finished():
        command = f"sora train --config {run.path}/config.yaml --out {run.path} --resume auto"
        run.missing.append(Missing("The run has not finished.", command))
    elif run.summary and not {"fgsm", "pgd10"} <= set(run.summary.get("accuracy") or ()):
        command = f"sora evaluate {run.path} --attacks clean,fgsm,pgd10"
        run.missing.append(Missing("No accuracy under FGSM and PGD-10, and so no verdict.", command))
    if run.folder.is_finished() and not run.logs["evals"]:
        again = shlex.quote(f"{run.folder.path}-evaluated")
        command = f"sora train --config {run.path}/config.yaml --eval-every 1 --out {again}"
        run.missing.append(Missing("No accuracies while training; a new run can have them.", command))
    digest_of = cache(run.folder.digest_of_weights)  # all probes are of the same weights
    found: dict[str, Result] = {}
    for name, (what, _) in PROBES.items():
        result = run.attempt(f"probes/{name}.json", partial(run.folder.read_probe, name))
        outdated = result is not None and is_outdated(result, digest_of)
        if result is not None and not outdated:
            found[name] = result
        elif run.folder.has_model():
            reason = " of these weights; the stored result is of earlier ones" if outdated else ""
            run.missing.append(Missing(f"No {what}{reason}.", f"sora probe {name} {run.path}"))
    return found


def table(settings: Sequence[Setting]) -> dict[str, Any]:
    """Return heads, cells with the values they are sorted by, and the facts that all rows share."""
    attacks = attacks_of([row.entry for setting in settings for row in setting.rows])
    rows = [(_texts(setting, row, attacks), row.entry) for setting in settings for row in setting.rows]
    first = rows[0][0]
    shared = {name: first[name] for name in FACTS if len({texts[name] for texts, _ in rows}) == 1}
    head = [name for name in first if name not in shared]
    return {
        "head": head,
        "rows": [[_cell(name, texts[name], entry) for name in head] for texts, entry in rows],
        "shared": ", ".join(f"{name} {text}" for name, text in shared.items()),
    }


def _texts(setting: Setting, row: ComparedRow, attacks: Sequence[str]) -> dict[str, str]:
    texts, heads = texts_of(row.entry, attacks), [f"{title_of(name)} %" for name in attacks]
    return {
        "Method": row.name,
        "Data set": setting.dataset,
        "Network": setting.model,
        "eps": setting.radius,
        "Seeds": str(len(row.entry["seeds"])),
        **dict(zip(heads, texts, strict=False)),
        "n": str(row.entry["n_test"]),
        **dict(zip(MEASURED, texts[len(heads) :], strict=True)),
    }


def _cell(name: str, text: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    if name in WORDS:
        tone = {"tone": TONES.get(entry["verdict"], "none")} if name == "Verdict" else {}
        return {"text": text, "order": text.lower(), "number": False, **tone}
    order = entry["threat"]["eps"] if name == "eps" else _leading_number(text)
    missing = order == math.inf and name not in ("First alarm", "Forwards")
    return {"text": text, "order": -1.0 if missing else order, "number": True}


def _leading_number(text: str) -> float:
    """Return the number a text such as `2 + 1/q` begins with, to sort by; infinity if it begins with none."""
    found = re.match(r"-?\d+(\.\d+)?", text)
    return float(found[0]) if found else math.inf
