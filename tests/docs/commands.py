"""Commands of the documentation, run in this process on data and models small enough for a test."""

import contextlib
import functools
import io
import re
import shlex
import shutil
from pathlib import Path

from PIL import Image

from sora import probes
from sora.cli import VERBS, main
from tests.docs.pages import ROOT

SMALL_MODEL = "--width 4 --set model.stages=1"
SMALL_DATA = "--batch-size 32 --limit-train 64 --limit-test 40 --holdout 20"
SMALL = {
    "train": f"--epochs 1 {SMALL_DATA} {SMALL_MODEL} --threads 1 --attacks clean --log-every 1 --quiet",
    "evaluate": "--limit 20 --threads 1 --quiet",
    "probe": "--limit 8 --threads 1",
    "export": "--limit 8 --threads 1",
    "figure": "--limit 8 --threads 1",
    "predict": "--threads 1",
    "demo": "--epochs 1 --quiet",
}
BUNDLED = ("digits", "folder:photos")  # data that a test has; runs on other data are only resolved
READS_RUNS = ("evaluate", "export", "probe", "predict", "compare", "report", "figure")
DATA_VERBS = ("list", "get", "check", "show")


def run(command: str, directives: dict[str, str], finished_run: Path, *, only_resolve: bool) -> str:
    """Run one command in the working directory; returns what is wrong with it, or nothing.

    Args:
        command: As printed in the page, without the prompt.
        directives: Of its block, see `tests.docs.pages`.
        finished_run: A small finished run, copied to run folders that the command reads.
        only_resolve: Whether settings are resolved and nothing is trained, as for the pages of results.
    """
    program, *arguments = shlex.split(command, comments=True)
    if program in ("torchrun", "srun"):
        arguments = arguments[arguments.index("sora") + 1 :]
        return _sora(shlex.join([*arguments, "--dry-run"]))
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        return "" if arguments[0] in targets else f"no target {arguments[0]}"
    if program == "python":
        file = Path(f"{arguments[1].replace('.', '/')}/__main__.py" if arguments[0] == "-m" else arguments[0])
        return "" if (ROOT / file).exists() else f"no file {file}"
    if program != "sora":
        return f"{program} is not a command of this package: say with a comment why the block is skipped"
    for argument in arguments:
        _provide(argument, finished_run, reads_runs=arguments[0] in READS_RUNS)
    return _sora(shlex.join([*arguments, *shlex.split(_appended(arguments, directives, only_resolve))]))


def _appended(arguments: list[str], directives: dict[str, str], only_resolve: bool) -> str:
    verb = arguments[0]
    if verb == "train":
        dataset = arguments[arguments.index("--dataset") + 1] if "--dataset" in arguments else "digits"
        if only_resolve or dataset not in BUNDLED or "--dry-run" in arguments:
            return "" if "--dry-run" in arguments else "--dry-run"
    trains_grid = verb in ("compare", "reproduce") and not {"--list", "--dry-run"} & set(arguments)
    if trains_grid and not Path(arguments[1]).is_dir():
        return "--dry-run"
    if "--adversarial" in arguments:  # the file says which images are checked
        return "--threads 1 --quiet"
    if verb in ("probe", "figure") and not probes.info(arguments[1]).images:  # it looks at none
        return "--threads 1"
    return directives.get("use") or f"{SMALL.get(verb, '')} {directives.get('add', '')}"


def _provide(argument: str, finished_run: Path, *, reads_runs: bool) -> None:
    """Create what a command reads and no earlier one has made: run folders, images, stored files."""
    path = Path(argument)
    stored = Path(__file__).parents[2] / path
    if path.suffix == ".yaml" and stored.is_file() and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(stored, path)
    if reads_runs and argument.startswith("runs/") and not path.exists() and not path.suffix:
        shutil.copytree(finished_run, path)
    if path.suffix in (".png", ".jpg") and reads_runs and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (16, 16), 128).save(path)


def _sora(line: str) -> str:
    error = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
        code = main(shlex.split(line))
    return "" if code == 0 else f"sora {line}\nexit code {code}: {error.getvalue()}"


def unknown_flags(command: str) -> list[str]:
    """The verb or the flags of `sora VERB ...` that the help does not know."""
    words = command.split()[1:]
    if words[0] not in VERBS:
        return [words[0]]
    inner = words[1:2] if words[0] == "data" and words[1:2] and words[1] in DATA_VERBS else []
    known = help_of(words[0], *inner)
    flags = re.findall(r"(?<![\w-])--[a-z][\w-]*", command)
    return [flag for flag in flags if not re.search(rf"{flag}(?![\w-])", known)]


@functools.cache
def help_of(*verb: str) -> str:
    """What `sora VERB --help` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main([*verb, "--help"])
    return printed.getvalue()
