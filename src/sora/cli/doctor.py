"""`sora doctor`: what this installation has, what is missing, and how to get it."""

import re
from dataclasses import dataclass
from importlib import metadata

from sora.cli._parse import DATA_DIR, flag, parse, print_json

_PACKAGE = "sora-at"
_FOR_USERS = {  # extras, and what needs them; the others are for work on this package
    "report": "sora report",
    "parquet": "ImageNet-100 as Parquet files",
    "ray": "--engine ray",
    "tensorboard": "--tracker tensorboard",
    "wandb": "--tracker wandb",
    "export": "sora export --to onnx",
}


@dataclass(frozen=True)
class Flags:
    """Print versions, devices, threads, data sets and missing extras, also for a bug report."""

    data_dir: str | None = flag(None, DATA_DIR)
    json: bool = flag(False, "print as JSON")


def run(argv: list[str]) -> int:
    """Print what was found; 1 if something that is needed is missing."""
    flags = parse(Flags, argv, "doctor")
    from sora._devices import pick_device
    from sora.runs.facts import machine

    packages, extras = _packages()
    device = pick_device("auto")
    hardware = {"device": str(device)} | {key: value or "none" for key, value in machine(device).items()}
    missing = [name for name, version in packages.items() if version is None]
    found = {"packages": packages, "machine": hardware, "data": _data(flags.data_dir), "extras": extras}
    if flags.json:
        print_json(found)
        return 1 if missing else 0
    for title, facts in found.items():
        print(f"{title}:")
        width = max(map(len, facts))
        for name, value in facts.items():
            print(f"  {name:<{width}}  {'missing' if value is None else value}")
    for name in missing:
        print(f"{name} is needed: pip install --force-reinstall {_PACKAGE}")
    return 1 if missing else 0


def _packages() -> tuple[dict[str, str | None], dict[str, str]]:
    """Return the versions of this package and what it needs, and for each extra what is missing."""
    import platform

    import sora

    packages: dict[str, str | None] = {"sora": sora.__version__, "Python": platform.python_version()}
    lacking: dict[str, list[str]] = {}
    for requirement in metadata.requires(_PACKAGE) or []:
        name = re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        try:
            version: str | None = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = None
        if extra is None:
            packages[name] = version
        else:
            lacking.setdefault(extra[1], []).extend([] if version else [name])
    extras = {name: f"complete, for {use}" for name, use in _FOR_USERS.items() if name in lacking}
    for name in (name for name in extras if lacking[name]):
        install = f"pip install '{_PACKAGE}[{name}]'"
        extras[name] = f"without {', '.join(lacking[name])}, for {_FOR_USERS[name]}: {install}"
    return packages, extras


def _data(data_dir: str | None) -> dict[str, str]:
    from sora import data
    from sora.data.inspection import counted

    states = {}
    for line in data.inventory(data_dir):
        absent = f"not here: sora data get {line.name}"
        if line.damaged:
            absent = f"damaged: {line.damaged}; remove it and run `sora data get {line.name}`"
        states[line.name] = f"{counted(line.images)} images" if line.images else absent
    return states
