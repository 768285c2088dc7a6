"""The page of the command line, made from what `sora VERB --help` prints."""

from __future__ import annotations

import contextlib
import io
import os
import re
from unittest.mock import patch

from sora.cli import VERBS, main

DATA_VERBS = ("list", "get", "check", "show")
INTRO = """# Command line

Every verb and flag, as `sora VERB --help` prints them. This page is generated from the code when the site is
built. Exit codes: 0 done, 1 the run failed, 2 the command line or an input is wrong, 130 interrupted.
"""


def reference() -> str:
    """The whole page as Markdown."""
    parts = [INTRO]
    for verb, summary in VERBS.items():
        parts.append(f"## sora {verb}\n\n{summary[:1].upper()}{summary[1:]}.\n\n{section(verb)}")
        if verb == "data":
            parts += [f"### sora data {inner}\n\n{section('data', inner)}" for inner in DATA_VERBS]
    return "\n".join(parts)


def help_of(*verb: str) -> str:
    """What `sora VERB --help` prints on a wide terminal."""
    printed = io.StringIO()
    with (
        patch.dict(os.environ, COLUMNS="220", NO_COLOR="1", TERM="dumb"),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        main([*verb, "--help"])
    return re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue())


def section(*verb: str) -> str:
    """One verb: its usage and description, and a table for each box of the help."""
    text, boxes = split_boxes(help_of(*verb))
    parts = [f"```text\n{text}\n```\n"]
    for title, lines in boxes:
        about, rows = read_box(lines)
        parts.append(f"**{title}**{': ' + about if about else ''}\n\n| | |\n| --- | --- |")
        parts.append("\n".join(f"| `{name}` | {_cell(meaning)} |" for name, meaning in rows) + "\n")
    return "\n".join(parts)


def split_boxes(text: str) -> tuple[str, list[tuple[str, list[str]]]]:
    """The text before the boxes, and each box as its title and its lines."""
    before, boxes = [], list[tuple[str, list[str]]]()
    for line in text.splitlines():
        if title := re.match(r"╭─ (.+?) ─", line):
            boxes.append((title[1], []))
        elif line.startswith("│") and boxes:
            boxes[-1][1].append(line[1:].rstrip("│ ").removeprefix(" "))
        elif not line.startswith("╰"):
            before.append(line.rstrip())
    return "\n".join(before).strip(), boxes


def read_box(lines: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """A box as its description and its rows of (flag, meaning)."""
    rule = next((number for number, line in enumerate(lines) if line.startswith("───")), -1)
    rows: list[tuple[str, str]] = []
    for line in lines[rule + 1 :]:
        if line[:1].strip():
            name, _, meaning = re.sub(r" {2,}", "\0", line, count=1).partition("\0")
            rows.append((name, meaning.strip()))
        elif line.strip() and rows:
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}".strip())
    return " ".join(line.strip() for line in lines[: max(rule, 0)]), rows


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")
