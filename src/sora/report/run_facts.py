"""What the page says about a run in tables: what was trained, its accuracies, its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sora.experiments.compare import radius
from sora.report.reading import RunRecord
from sora.report.sentences import title_of
from sora.settings import GROUPS


def facts_of(run: RunRecord) -> list[str]:
    """What was trained on what, in a few words each."""
    summary, config = run.summary, run.config
    if summary:
        threat = f"{summary['threat']['norm']} eps {radius(summary['threat']).split()[-1]}"
        facts = [summary["method"], summary["dataset"], summary["model"], threat]
        return [*map(str, facts), f"{summary['epochs']} epochs", f"seed {summary['seed']}"]
    values = {**config, **config.get("data", {}), **config.get("network", {}), **config.get("threat", {})}
    return [str(values[key]) for key in ("method", "dataset", "model") if values.get(key)]


def accuracies_of(run: RunRecord) -> list[dict[str, Any]]:
    """One row per attack, with its interval, number of images and settings."""
    summary = run.summary
    rows = []
    for name, share in (summary.get("accuracy") or {}).items():
        about = summary["attacks"][name]
        interval = f"{100 * about['low']:.1f} to {100 * about['high']:.1f}"
        details = [f"eps {about['eps']:.4g}" if about.get("eps") else "", _steps(about)]
        rows.append(
            {
                "attack": title_of(name),
                "percent": f"{100 * share:.1f}",
                "low": 100 * about["low"],
                "width": 100 * (about["high"] - about["low"]),
                "share": 100 * share,
                "interval": interval,
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


def origins_of(config: Mapping[str, Any]) -> list[dict[str, Any]]:
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
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
