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
from sora.training.config import RESUMABLE, TrainConfig, check_set_keys, defaults, read_config_file
from sora.training.run import differences, is_finished, read_config

Extra = dict[str, tuple[Any, Any, str]]  # further flags of a verb: type, default, help

_SET = Annotated[
    tyro.conf.UseAppendAction[tuple[str, ...]],
    tyro.conf.arg(help="a hyper-parameter, e.g. sora.alpha0=0.02 or model.stages=2; may be repeated"),
]
_COMMON: Extra = {
    "config": (str | None, None, "YAML file with settings; flags win over it"),
    "dry_run": (bool, False, "print what would be run and stop"),
    "quiet": (bool, False, "say nothing while working"),
    "json": (bool, False, "print the result as JSON"),
}
_RESUME = "`--resume` continues an unfinished run, `--resume auto` continues or starts."


def run(argv: list[str]) -> int:
    """Resolve the settings, train, print the summary."""
    argv, resume = take_resume(argv)
    config, flags = resolve(argv, resume)
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


def take_resume(argv: list[str]) -> tuple[list[str], str | None]:
    """`--resume` or `--resume auto`, wherever it stands; a torchrun restart implies the latter."""
    rest = list(argv)
    resume = "auto" if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0 else None
    if "--resume" in rest:
        at = rest.index("--resume")
        resume = "auto" if rest[at + 1 : at + 2] == ["auto"] else "yes"
        del rest[at : at + (2 if resume == "auto" else 1)]
    return rest, resume


def peek(argv: list[str]) -> argparse.Namespace:
    """The few flags on which the others' defaults depend."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--dataset", "--method", "--model", "--config", "--out", "--seed"):
        parser.add_argument(name)
    return parser.parse_known_args([item for item in argv if item not in ("-h", "--help")])[0]


def flags_of(
    argv: list[str], verb: str, base: dict[str, Any], extra: Extra, without: tuple[str, ...] = ()
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """All flags of a verb, the `--set` table, and the settings that differ from `base`."""
    fields = [*option_flags(TrainConfig, base, without), ("set", _SET, ())]
    fields += [(n, Annotated[t, tyro.conf.arg(help=h)], d) for n, (t, d, h) in (extra | _COMMON).items()]
    spec: Any = dataclasses.make_dataclass("Flags", fields)
    spec.__doc__ = f"Settings come from flags, then --config, then the data set's recipe. {_RESUME}"
    flags = parse(spec, argv, verb)
    given = parse_set(flags.set)
    check_set_keys(given)
    defaulted = {name: field.default for name, _, field in option_flags(TrainConfig, base, without)}
    touched = {n: getattr(flags, n) for n, default in defaulted.items() if getattr(flags, n) != default}
    return flags, given, touched


def resolve(argv: list[str], resume: str | None) -> tuple[TrainConfig, Any]:
    """The settings of a run: recipe or stored run, then file, then flags; and the verb's other flags."""
    seen = peek(argv)
    file = read_config_file(seen.config) if seen.config else {}
    dataset = seen.dataset or file.get("dataset", "digits")
    method = seen.method or file.get("method", "sora")
    fresh = defaults(dataset, method, file, seen.model)
    named = {key: str(value) for key, value in vars(seen).items() if value and key in ("out", "seed")}
    folder = TrainConfig.build({"dataset": dataset, "method": method} | _places(file) | named).folder()
    stored = _stored(folder, resume)
    base = _over(stored, fresh, file, seen) if stored else fresh
    flags, given, touched = flags_of(argv, "train", base, {})
    config = TrainConfig.build(base | touched | {"set": base.get("set", {}) | given})
    changed = differences(stored, config) if stored else []
    if changed:
        raise UserError(
            f"the run in {folder} has other settings: {'; '.join(changed)}"
            f" (only {', '.join(RESUMABLE)} may change when a run goes on)"
        )
    return config, flags


def _places(file: dict[str, Any]) -> dict[str, Any]:
    return {key: file[key] for key in ("out", "seed") if key in file}


def _stored(folder: Path, resume: str | None) -> dict[str, Any] | None:
    """The settings of the run that is to go on; None for a new one."""
    exists = (folder / "config.yaml").exists()
    if exists and resume is None:
        raise UserError(f"{folder} already holds a run; go on with --resume or choose another --out")
    if not exists and resume == "yes":
        raise UserError(f"there is no run in {folder} to resume; leave --resume out, or use --resume auto")
    return read_config(folder) if exists else None


def _over(
    stored: dict[str, Any], fresh: dict[str, Any], file: dict[str, Any], seen: argparse.Namespace
) -> dict[str, Any]:
    """The stored settings, under what the config file and the flags of this call name anew."""
    base = stored | {key: fresh[key] for key in file if key in fresh and key != "set"}
    base |= {key: getattr(seen, key) for key in ("dataset", "method") if getattr(seen, key)}
    if base["method"] != stored["method"]:  # another method's hyper-parameters mean nothing to it
        return base | {"set": fresh["set"]}
    return base | {"set": stored["set"] | (fresh["set"] if "set" in file else {})}
