"""The command line: one file per verb. Each parses its flags, calls the library and prints."""

import difflib
import errno
import importlib
import os
import sys
import traceback
from typing import Any

from sora._process import (
    Escaping,
    Interrupts,
    Tolerant,
    discard_stdout,
    occupy_standard_descriptors,
    one_line_warnings,
)

VERBS = {
    "train": "train one robust model",
    "compare": "train several methods on the same data and seeds, or read finished runs; one table",
    "reproduce": "compute a table of the paper and print it beside the paper's numbers",
    "demo": "train FGSM, which collapses, beside SORA, which does not; about a minute",
    "evaluate": "accuracy of a trained model under attacks",
    "predict": "the class of single images, and whether an attack changes it",
    "probe": "look inside trained models: eps curves, landscapes, boundaries, traces, curvature",
    "export": "write a trained model for other programs, as .pt2, ONNX, Python or for the Hub; measure it",
    "report": "one page about runs and comparisons that opens in any browser, without a network",
    "figure": "the figures of the paper from runs, as PDF, SVG, PNG or a page",
    "data": "fetch, check and look at data sets",
    "list": "methods, models, data sets, attacks, metrics, probes, recipes, and the models of the zoo",
    "show": "everything about one method, model, data set, attack, metric, probe, recipe or model of the zoo",
    "doctor": "versions, devices, data sets, and what is missing; for a bug report",
}

_MODULES = {"list": "list_", "figure": "probe"}  # of verbs that have not their own name
_LONGEST = 2000  # characters of an error; a hostile file may be quoted in it
_USAGE = """usage: sora VERB [options]

Fast adversarial training with an alarm for catastrophic overfitting.

{verbs}

`sora VERB --help` explains a verb's options. `sora --version` prints the version.
With --debug, any verb shows where an error happened."""


def main(argv: list[str] | None = None) -> int:
    """Entry point of the `sora` command; returns the exit code."""
    # Before torch starts its threads: by default they spin while they wait. That takes the processor from
    # other programs, and beside such programs two threads are slower than one. Results do not depend on it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    occupy_standard_descriptors()
    stdout, stderr = sys.stdout, sys.stderr
    streams: list[Any] = [stdout and Escaping(stdout), Escaping(Tolerant(stderr))]
    sys.stdout, sys.stderr = streams  # a message that cannot be printed must not end a training
    try:
        with one_line_warnings():
            code = _run(list(sys.argv[1:] if argv is None else argv))
        return _flush(code)
    finally:
        sys.stderr.flush()
        sys.stdout, sys.stderr = stdout, stderr


def _run(arguments: list[str]) -> int:
    debug = "--debug" in arguments
    with Interrupts() as interrupts:
        try:
            return _dispatch([argument for argument in arguments if argument != "--debug"])
        except BaseException as error:
            if debug:
                traceback.print_exc()
            unexplained = interrupts.received and not hasattr(error, "exit_code")
            return _exit_code(KeyboardInterrupt() if unexplained else error)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE.format(verbs="\n".join(f"  {verb:<10}{text}" for verb, text in VERBS.items())))
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from sora import __version__

        print(f"sora {__version__}")
        return 0
    verb = arguments[0]
    if verb not in VERBS:
        near = difflib.get_close_matches(verb[:100], VERBS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return _fail(f"unknown verb {verb[:100]!r}; {hint}allowed: {', '.join(VERBS)}", 2)
    module = importlib.import_module(f"sora.cli.{_MODULES.get(verb, verb)}")
    return int(module.run(arguments[1:], verb) if verb == "figure" else module.run(arguments[1:]))


def _flush(code: int) -> int:
    """Flush what was printed here, where a full disk can still be reported in one line."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError) as error:
        return _exit_code(error) or 1
    return code


def _exit_code(error: BaseException) -> int:
    """One line for every way to fail, and its exit code."""
    from sora.errors import RunError, UserError

    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, BrokenPipeError):  # the reader of a pipe, such as `head`, has ended
        discard_stdout()
        return 1
    if isinstance(error, KeyboardInterrupt):
        return _fail("interrupted", 130)
    if isinstance(error, UserError):
        return _fail(str(error), 2)
    if hasattr(error, "exit_code"):  # a run that a signal stopped and that has written its checkpoint
        return _fail(str(error), int(error.exit_code))
    if isinstance(error, RunError):
        return _fail(str(error), 1)
    if isinstance(error, MemoryError):
        return _fail("out of memory", 1)
    if isinstance(error, OSError):
        if error.errno == errno.ENOSPC and error.filename is None:  # possibly standard output itself
            discard_stdout()
        code = 2 if error.errno == errno.ENAMETOOLONG else 1  # no name of ours is so long
        return _fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), code)
    return _fail(f"{type(error).__name__}: {error} (--debug shows where)", 1)


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"sora: {line if len(line) <= _LONGEST else line[:_LONGEST] + ' ...'}", file=sys.stderr)
    return code
