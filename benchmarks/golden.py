"""Whether a change altered behaviour: the same commands on two versions of the package, results compared.

    python benchmarks/golden.py OLD [--only runs,help,...] [--expect NAME]

OLD is a commit; the new version is the working tree. Each version runs in processes of its own with the same
interpreter, both at the same time, and only through `python -m sora` and public names. Nothing is stored: the
results of the two versions are compared with each other. Times, memory, paths and versions are masked.
The exit code is 1 if anything differs that `--expect` does not name (`runs/*` names all items of a group).
"""

import argparse
import contextlib
import fnmatch
import hashlib
import importlib
import inspect
import io
import itertools
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
SMALL = "--dataset digits --width 4 --set model.stages=1 --limit-train 96 --limit-test 40 --holdout 20 "
SMALL += "--batch-size 16 --epochs 2 --log-every 2 --checkpoint-every 5 --threads 1 --quiet"
# A growing radius, so that training goes well for 70 steps and the guard has a good state to return to.
COLLAPSING = (
    "--dataset digits --width 16 --set model.stages=1 --limit-train 320 --limit-test 40 --holdout 20 "
)
COLLAPSING += (
    "--batch-size 16 --epochs 7 --eps 0.2 --eps-warmup 5 --lr 0.05 --eval-every 3 --threads 1 --quiet"
)
GUARDS = ("warn", "stop", "rollback", "pgd")
RUNS = {
    **{f"guard-{name}": f"{COLLAPSING} --method fgsm --guard {name}" for name in GUARDS},
    "ema": f"{SMALL} --method sora --ema 0.9 --keep best",
    "accumulate": f"{SMALL} --method n-fgsm --accumulate 2 --monitor gradalign --monitor-every 4",
    "l2": f"{SMALL} --method sora --norm l2 --eps 0.5 --augment crop:2 --optimizer adamw --lr 0.01",
    "atas": f"{SMALL} --method atas",
    "free": f"{SMALL} --method free",
    "trades": f"{SMALL} --method trades --smoothing 0.1",
    "killed": f"{SMALL} --method sora",
    "two-ranks": f"{SMALL} --method sora",
}
SHORT = ("--limit", "10", "--threads", "1", "--quiet", "--json")
DISTINCT = ("cifar10", "digits", "fastat-cifar10", "vit-adamw")
KILLED_AT = 8  # the weight update, of 12
PUBLIC = "attacks curvature data evaluation methods metrics models probes runs settings threat training"
# Measured values, versions, digests of the source text, and of records that contain any of these.
MASKED = re.compile(
    r"(seconds|_per_second|_memory_mb)(\.\w+(\[\d+\])?)?$|(^|\.)versions\.|network\.fingerprint$|fingerprint\.network$|(^|[\].])blake2b$"
)
FILES = ("*.safetensors", "*.json", "*.jsonl", "config.yaml", "*.txt", "*.md", "*.csv")


# What runs inside a version


def sora(*arguments: str) -> str:
    """Run the command line in this process; return its exit code and what it printed."""
    out, error = io.StringIO(), io.StringIO()
    code: Any = 0
    sys.argv = ["sora", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            runpy.run_module("sora", run_name="__main__")
        except SystemExit as ended:
            code = ended.code
    if code and os.environ["GOLDEN"] == "old":
        raise SystemExit(f"sora {' '.join(arguments)}: exit {code}: {error.getvalue()}")
    return f"exit {code or 0}\n{error.getvalue()}{out.getvalue()}"


def write(path: Path, text: str) -> None:
    """Write a result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def train(folder: Path, flags: str) -> None:
    """Train in this process."""
    write(folder / "printed.txt", sora("train", *flags.split(), "--out", f"{folder}/run"))


def killed_run(folder: Path, flags: str) -> None:
    """Train in a process that kills itself after a weight update."""
    command = [sys.executable, __file__, "--killed", *flags.split(), "--out", f"{folder}/run"]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if ended.returncode != -signal.SIGKILL:
        raise SystemExit(f"was not killed: {ended.stderr}")


def die_in(arguments: list[str]) -> None:
    """Train until the weight update that kills this process."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    counter = itertools.count(1)

    def count(*_: Any) -> None:
        if next(counter) == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(count)
    print(sora("train", *arguments), file=sys.stderr)


def resume(folder: Path) -> None:
    """Continue a killed run to its end."""
    write(folder / "printed.txt", sora("train", "--resume", "--quiet", "--out", f"{folder}/run"))


def make_runs(place: Path) -> None:
    """Train the short runs; the guard's must contain its action."""
    for name, flags in RUNS.items():
        if name == "killed":
            killed_run(place / name, flags)
            resume(place / name)
        elif name == "two-ranks":
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
            command = [*torchrun, "-m", "sora", "train", *flags.split(), "--out", f"{place / name}/run"]
            subprocess.run(command, check=True, capture_output=True)
        else:
            train(place / name, flags)
        guard = name.removeprefix("guard-")
        if (
            guard != name
            and f'"action": "{guard}"' not in (place / name / "run" / "events.jsonl").read_text()
        ):
            raise SystemExit(f"{name}: the guard did not act")


def make_dry_runs(place: Path) -> None:
    """Resolve the settings of every recipe, with every method where the recipe tells methods apart."""
    recipes, methods, data = (_listed(kind) for kind in ("recipe", "method", "data set"))
    for recipe in recipes:
        (dataset,) = [name for name in data if name in recipe.split("-")] or ["cifar10"]
        flags = ["--recipe", recipe, "--dataset", dataset, "--dry-run", "--json"]
        chosen = methods if recipe in DISTINCT else ("sora", "free", "gradalign")
        printed = {method: sora("train", *flags, "--method", method) for method in chosen}
        lines = [f"{method}: {line}" for method, text in printed.items() for line in masked(text, {})]
        write(place / f"{recipe}.txt", "\n".join(lines))


def _listed(kind: str) -> list[str]:
    verb = "data" if kind == "data set" else f"{kind}s"
    rows = json.loads(sora("list", verb, "--json").partition("\n")[2])
    return [row[kind] for row in rows]


def make_help(place: Path) -> None:
    """Print every verb's help."""
    from sora.cli import VERBS

    write(place / "sora.txt", sora("--help"))
    for verb in VERBS:
        write(place / f"{verb}.txt", sora(verb, "--help"))


def make_json(place: Path) -> None:
    """Print results as JSON: lists, a comparison, an evaluation, a table of the paper."""
    for kind in ("methods", "models", "data", "attacks", "metrics", "probes", "recipes"):
        write(place / f"list-{kind}.json", sora("list", kind, "--json"))
    grid = place / "compare" / "runs"
    flags = f"{SMALL} --jobs 1 --json".split()
    write(
        place / "compare" / "printed.txt",
        sora("compare", "--methods", "fgsm,sora", *flags, "--out", str(grid)),
    )
    write(place / "compare-finished.txt", sora("compare", str(grid), "--json"))
    attacks = "clean,fgsm,pgd10,pgd5x2"
    flags = [*SHORT, "--attacks", attacks, "--eps", "0.1,l2:0.5", "--per-class"]
    write(place / "evaluate" / "printed.txt", sora("evaluate", f"{grid}/sora-s0", *flags))
    flags = [*SHORT, "--attacks", "clean,apgd-ce", "--card"]
    write(place / "evaluate-card.txt", sora("evaluate", f"{grid}/sora-s0", *flags))
    flags = (
        "--seeds 1 --epochs 1 --width 4 --limit-train 32 --limit-test 30 --threads 1 --jobs 1 --quiet --json"
    )
    chosen = "components --dataset digits --methods sora,no-sampling --attacks clean,fgsm,pgd10"
    table = str(place / "reproduce" / "table")
    write(
        place / "reproduce" / "printed.txt",
        sora("reproduce", *chosen.split(), *flags.split(), "--out", table),
    )


def make_names(place: Path) -> None:
    """List the public names with the signatures of what can be called."""
    package = importlib.import_module("sora")
    modules = {"sora": package} | {f"sora.{name}": getattr(package, name) for name in PUBLIC.split()}
    for name, module in modules.items():
        public = getattr(module, "__all__", None) or [key for key in dir(module) if _own(module, key)]
        lines = itertools.chain.from_iterable(
            _described(f"{name}.{key}", getattr(module, key)) for key in sorted(public)
        )
        write(place / f"{name}.txt", re.sub(r" at 0x\w+", "", "\n".join(lines)))


def _own(module: types.ModuleType, key: str) -> bool:
    value = getattr(module, key)
    return not key.startswith("_") and getattr(value, "__module__", "").startswith("sora")


def _described(name: str, value: Any) -> Iterator[str]:
    """Yield a line for the value, and for a class one for each of its public members."""
    try:
        signature = inspect.signature(value)  # without annotations, which are text or what the text means
        parameters = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
        yield f"{name}{signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)}"
    except (TypeError, ValueError):
        yield f"{name}: {type(value).__name__}"
    if inspect.isclass(value):
        for key in sorted(vars(value)):
            if not key.startswith("_"):
                yield from _described(f"{name}.{key}", getattr(value, key))


def make_old_runs(place: Path) -> None:
    """Write a finished and a killed run, for both versions to read."""
    train(place / "finished", f"{SMALL} --method fgsm-rs")
    killed_run(place / "resumed", f"{SMALL} --method atas --ema 0.9")


def read_old_runs(place: Path) -> None:
    """Evaluate the finished run and resume the killed one."""
    run = str(place / "finished" / "run")
    write(place / "finished" / "printed.txt", sora("evaluate", run, *SHORT, "--attacks", "clean,pgd10"))
    resume(place / "resumed")
    package = importlib.import_module("sora")
    lines = [
        f"{key} {tuple(value.shape)} {value.sum()}" for key, value in package.load(run).state_dict().items()
    ]
    write(place / "loaded.txt", "\n".join(lines))


GROUPS: dict[str, Callable[[Path], None]] = {
    "runs": make_runs,
    "dry-run": make_dry_runs,
    "help": make_help,
    "json": make_json,
    "names": make_names,
    "old-run": read_old_runs,
}


# Comparison


def flatten(value: Any, path: str = "") -> Iterator[str]:
    """Yield a line `path = value` for every leaf, by path; measured values are masked."""
    if isinstance(value, dict | list) and value:
        items = sorted(value.items()) if isinstance(value, dict) else enumerate(value)
        for key, each in items:
            yield from flatten(each, f"{path}.{key}" if isinstance(value, dict) else f"{path}[{key}]")
    else:
        yield f"{path.lstrip('.')} = {'*' if MASKED.search(path) else json.dumps(value)}"


def masked(text: str, places: dict[str, str]) -> list[str]:
    """Return the lines of a text, with JSON taken apart, and paths and measured values masked."""
    for path, name in places.items():
        text = text.replace(path, name)
    start = re.search(r"^[\[{]\s*$|^[\[{].*[\]}]$", text, re.MULTILINE)
    if start:
        head, body = text[: start.start()], text[start.start() :]
        with contextlib.suppress(ValueError):
            return [*head.splitlines(), *flatten(json.loads(body))]
        with contextlib.suppress(ValueError):
            return [*head.splitlines(), *flatten([json.loads(line) for line in body.splitlines()])]
    return text.splitlines()


def lines_of(path: Path, places: dict[str, str]) -> list[str]:
    """Return what is compared of a file: its text, or digests of its tensors' bytes."""
    if path.suffix == ".yaml":
        return masked(json.dumps(yaml.safe_load(path.read_text())), places)
    if path.suffix != ".safetensors":
        return masked(path.read_text(), places)
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    return [f"{k} {t.dtype} {t.shape} {hashlib.blake2b(t.tobytes()).hexdigest()}" for k, t in tensors.items()]


def first_difference(old: list[str], new: list[str]) -> str:
    """Describe the first lines that only one version has; an empty text if there is no difference."""
    in_old, in_new = set(old), set(new)
    gone, added = [line for line in old if line not in in_new], [line for line in new if line not in in_old]
    if not gone and not added:
        return "" if old == new else "the same lines in another order or number"
    first, second = [*gone, ""][0], [*added, ""][0]
    common = sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    )
    around = slice(max(0, common - 60), common + 60)
    shown = [f"{sign} {line[around]!r}" for sign, line in (("-", first), ("+", second)) if line]
    return f"{' '.join(shown)} ({len(gone)} gone, {len(added)} new)"


def difference(old: Path, new: Path, places: dict[str, str]) -> str:
    """Describe the first difference between two files or folders; an empty text if there is none."""
    if old.is_file() and new.is_file():
        return first_difference(lines_of(old, places), lines_of(new, places))
    names = [_contents(folder) for folder in (old, new)]
    if names[0] != names[1]:
        return f"files: only in one version: {', '.join(sorted(set(names[0]) ^ set(names[1])))}"
    differing = {name: difference(old / name, new / name, places) for name in names[0]}
    differing = {name: text for name, text in differing.items() if text}
    first = [f"{name}, {text}" for name, text in differing.items()][:1]
    return "; also ".join([*first, *list(differing)[1:]])


def _contents(folder: Path) -> list[str]:
    """Return the files of a folder that are compared; checkpoints contain times."""
    found = {path.relative_to(folder) for pattern in FILES for path in folder.rglob(pattern)}
    return sorted(str(path) for path in found if "checkpoints" not in path.parts)


# The two versions


@dataclass(frozen=True)
class Version:
    """One of the two versions and the folder it works in."""

    name: str
    source: Path
    folder: Path

    def start(self, group: str) -> subprocess.Popen[bytes]:
        """Start a group of commands."""
        env = {"PYTHONPATH": str(self.source), "GOLDEN": self.name, "COLUMNS": "100", "NO_COLOR": "1"}
        command = [sys.executable, __file__, "--inside", group]
        with self.log(group).open("w") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=os.environ | env, stdout=log, stderr=subprocess.STDOUT
            )

    def log(self, group: str) -> Path:
        """Return the file of a group's output."""
        return self.folder / f"{group}.log"


def run_group(group: str, old: Version, new: Version) -> list[tuple[str, str]]:
    """Run a group in both versions at once; return its items with their differences."""
    if group == "old-run":
        _finish(old, "write-old-run", old.start("write-old-run"))
        shutil.copytree(old.folder / group, new.folder / group)
    processes = old.start(group), new.start(group)
    failed = processes[1].wait() != 0
    _finish(old, group, processes[0])
    places = {str(version.folder): "HERE" for version in (old, new)}
    places |= {str(version.source): "SOURCE" for version in (old, new)}
    folders = [version.folder / group for version in (old, new)]
    found = []
    for name in sorted({path.name for folder in folders if folder.exists() for path in folder.iterdir()}):
        paths = [folder / name for folder in folders]
        missing = [word for word, path in zip(("old", "new"), paths, strict=True) if not path.exists()]
        text = f"missing in the {missing[0]} version" if missing else difference(*paths, places)
        found.append((f"{group}/{name.removesuffix('.txt')}", text))
    if failed:
        last = new.log(group).read_text().strip().splitlines()[-1:]
        found.append((f"{group}/ended", f"the new version failed: {' '.join(last)}"))
    return found


def _finish(version: Version, group: str, process: subprocess.Popen[bytes]) -> None:
    if process.wait() != 0:
        raise SystemExit(f"the {version.name} version failed: {version.log(group).read_text()}")


def export(commit: str, folder: Path) -> Path:
    """Write the package of a commit into a folder."""
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder / "src"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", help="a commit")
    parser.add_argument("--only", default=",".join(GROUPS), help="groups, separated by commas")
    parser.add_argument("--expect", action="append", default=[], help="an item that differs as intended")
    flags = parser.parse_args()
    unknown = set(flags.only.split(",")) - set(GROUPS)
    if unknown:
        parser.error(f"unknown group {sorted(unknown)[0]!r}; allowed: {', '.join(GROUPS)}")
    counts = dict.fromkeys(("same", "differs", "differs as intended"), 0)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name).resolve()
        old = Version("old", export(flags.old, scratch / "tree"), scratch / "old")
        new = Version("new", Path(shutil.copytree(ROOT / "src", scratch / "src")), scratch / "new")
        for version in (old, new):
            version.folder.mkdir()
        for group in flags.only.split(","):
            for item, text in run_group(group, old, new):
                expected = any(fnmatch.fnmatch(item, pattern) for pattern in flags.expect)
                word = ("differs as intended" if expected else "differs") if text else "same"
                counts[word] += 1
                print(f"{word:<8} {item}{text and '  ' + text}", flush=True)
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 1 if counts["differs"] else 0


def inside(group: str) -> None:
    """Run a group with the package on the path."""
    source = Path(os.environ["PYTHONPATH"])
    package = importlib.import_module("sora")
    if not Path(str(package.__file__)).is_relative_to(source):
        raise SystemExit(f"imported {package.__file__}, not the package of {source}")
    if group == "write-old-run":
        make_old_runs(Path("old-run"))
    else:
        GROUPS[group](Path(group))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2])
    elif sys.argv[1:2] == ["--killed"]:
        die_in(sys.argv[2:])
    else:
        sys.exit(main())
