"""`sora train`: one run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from sora.cli._parse import option_flags, parse, parse_set
from sora.cli._tables import print_summary
from sora.errors import UserError
from sora.training.config import RESUMABLE, TrainConfig, check_set_keys, defaults, read_config_file, set_for
from sora.training.run import differences, is_finished, read_config

Set = Annotated[
    tyro.conf.UseAppendAction[tuple[str, ...]],
    tyro.conf.arg(help="a hyper-parameter, e.g. sora.alpha0=0.02 or model.stages=2; may be repeated"),
]
_EXTRA = {
    "config": (str | None, None, "YAML file with settings; flags win over it"),
    "dry_run": (bool, False, "print the resolved settings and stop"),
    "quiet": (bool, False, "say nothing while working"),
    "json": (bool, False, "print the summary as JSON"),
}


def run(argv: list[str]) -> int:
    """Resolve the settings, train, print the summary."""
    argv, resume = _take_resume(argv)
    config, flags = resolve(argv, "train", resume)
    if flags.dry_run:
        print(config.to_yaml(), end="")
        return 0
    folder = config.folder()
    if resume and is_finished(folder):
        print(f"sora: the run in {folder} is finished; nothing to do", file=sys.stderr)
        return 0
    from sora.training import train

    summary = train(config, quiet=flags.quiet)
    if flags.json:
        print(json.dumps(json.loads((folder / "summary.json").read_text()), indent=2))
    elif not flags.quiet:
        print_summary(summary, folder)
    return 0


def _take_resume(argv: list[str]) -> tuple[list[str], str | None]:
    """`--resume` or `--resume auto`, wherever it stands; a torchrun restart implies the latter."""
    rest, resume = list(argv), None
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0:
        resume = "auto"
    if "--resume" in rest:
        at = rest.index("--resume")
        resume = "auto" if rest[at + 1 : at + 2] == ["auto"] else "yes"
        del rest[at : at + (2 if resume == "auto" else 1)]
    return rest, resume


def resolve(argv: list[str], verb: str, resume: str | None = None) -> tuple[TrainConfig, Any]:
    """The settings of a run: recipe, then file or stored run, then flags; and the verb's other flags."""
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--dataset", "--method", "--model", "--config", "--out", "--seed"):
        peek.add_argument(name)
    seen, _ = peek.parse_known_args([item for item in argv if item not in ("-h", "--help")])
    file = read_config_file(seen.config) if seen.config else {}
    stored = _stored(seen, file, resume)
    base = stored or base_settings(seen, file)
    fields = option_flags(TrainConfig, base)
    fields += [("set", Set, ())]
    fields += [(n, Annotated[t, tyro.conf.arg(help=h)], d) for n, (t, d, h) in _EXTRA.items()]
    spec = dataclasses.make_dataclass("Flags", fields)
    spec.__doc__ = f"sora {verb}: settings come from flags, then --config, then the data set's recipe."
    flags = parse(spec, argv, verb)
    given = parse_set(flags.set)
    check_set_keys(given)
    table = {field.name: getattr(flags, field.name) for field in dataclasses.fields(TrainConfig)}
    config = TrainConfig.build(table | {"set": base.get("set", {}) | given})
    if stored:
        changed = differences(stored, config)
        if changed:
            raise UserError(
                f"the run in {config.folder()} has other settings: {'; '.join(changed)}"
                f" (only {', '.join(RESUMABLE)} may change when a run goes on)"
            )
    return config, flags


def base_settings(seen: argparse.Namespace, file: dict[str, Any]) -> dict[str, Any]:
    """What a new run starts from before its flags."""
    dataset = seen.dataset or file.get("dataset", "digits")
    method = seen.method or file.get("method", "sora")
    return defaults(dataset, method, file, seen.model)


def _stored(seen: argparse.Namespace, file: dict[str, Any], resume: str | None) -> dict[str, Any] | None:
    """The settings of the run that is to go on; None for a new one."""
    base = base_settings(seen, file) if not seen.out and not file.get("out") else {}
    named = {"dataset": base.get("dataset", "digits"), "method": base.get("method", "sora")}
    out = seen.out or file.get("out")
    folder = Path(out) if out else TrainConfig(**named, seed=int(seen.seed or base.get("seed", 0))).folder()
    exists = (folder / "config.yaml").exists()
    if exists and resume is None:
        raise UserError(f"{folder} already holds a run; go on with --resume or choose another --out")
    if not exists and resume == "yes":
        raise UserError(f"there is no run in {folder} to resume; leave --resume out, or use --resume auto")
    if not exists:
        return None
    stored = read_config(folder)
    if seen.method and seen.method != stored["method"]:
        stored["set"] = set_for(stored["set"], stored["method"])
    return stored
