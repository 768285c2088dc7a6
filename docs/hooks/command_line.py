"""The page of the command line: what `sora VERB --help` prints, for every verb."""

import contextlib
import io
import os
import re
import textwrap

from sora.cli import VERBS, main

DATA_VERBS = ("list", "get", "check", "show")
COLUMNS = 80  # wider help is printed in two columns
INTRO = """# Command line

Every verb and flag, as `sora VERB --help` prints them. This page is generated from the code when the site is
built. Exit codes: 0 done, 1 the run failed, 2 the command line or an input is wrong, 130 interrupted.
"""


def reference() -> str:
    """The whole page as Markdown."""
    parts = [INTRO]
    for verb, summary in VERBS.items():
        parts.append(f"## sora {verb}\n\n{summary[:1].upper()}{summary[1:]}.\n\n{help_of(verb)}")
        if verb == "data":
            parts += [f"### sora data {inner}\n\n{help_of(verb, inner)}" for inner in DATA_VERBS]
    return "\n".join(parts)


def help_of(*verb: str) -> str:
    """The help of one verb as a block."""
    printed, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(COLUMNS)
    try:
        with contextlib.redirect_stdout(printed):
            main([*verb, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue())  # without colours
    lines = [textwrap.fill(line, COLUMNS) if line[:1].isalpha() else line for line in plain.splitlines()]
    return "```text\n" + "\n".join(lines).strip() + "\n```\n"
