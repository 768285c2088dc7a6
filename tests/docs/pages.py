"""The pages of the documentation and the code blocks in them.

A comment above a block says how the test treats it; the reader of the page does not see it:

    <!-- test: skip, REASON -->   the block is not run; the flags of its `sora` commands are still checked
    <!-- test: slow -->           run by `make test-slow` only
    <!-- test: add FLAGS -->      flags appended to the commands, after those that make them small
    <!-- test: use FLAGS -->      flags appended in place of those that make them small
    <!-- test: setup CODE -->     Python code, possibly of several lines, run before the page's first block
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if path.name != "CHANGELOG.md"
)

_DIRECTIVE = re.compile(r"^<!-- test: (skip|slow|add|use|setup)\b,?\s*(.*?)\s*-->", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block, its line in the page, and what the comments above it say."""

    language: str
    text: str
    line: int
    directives: dict[str, str]

    @property
    def file(self) -> str:
        """The name of the file that the block shows: its first line is `# NAME.py` or `# NAME.yaml`."""
        name = re.match(r"# (\w+\.(?:py|yaml))\n", self.text)
        return name[1] if name else ""

    @property
    def commands(self) -> list[str]:
        """The commands of a console session (lines behind a `$`) or of a shell script."""
        if self.language not in ("console", "bash"):
            return []
        joined = re.sub(r"\\\n\s*", "", self.text)
        if self.language == "console":
            return re.findall(r"^\w*\$ +(.*)$", joined, flags=re.MULTILINE)
        return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def text_of(page: str) -> str:
    """A page as it is stored."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(text: str) -> list[Block]:
    """All fenced blocks of a page."""
    blocks, end = [], 0
    for fence in _FENCE.finditer(text):
        comments = re.search(r"(?:<!-- test:(?:(?!-->).)*-->\s*)+\Z", text[end : fence.start()], re.DOTALL)
        directives = dict(_DIRECTIVE.findall(comments[0])) if comments else {}
        directives.pop("setup", None)
        indent, language, body = fence.groups()
        body = re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
        line = text.count("\n", 0, fence.start(3)) + 1
        blocks.append(Block(language, body, line, directives))
        end = fence.end()
    return blocks


def setup_of(text: str) -> str:
    """The Python code that prepares a page's folder."""
    return "\n".join(code for kind, code in _DIRECTIVE.findall(text) if kind == "setup")


def inline_commands(text: str) -> list[str]:
    """`sora VERB ...` inside of sentences and tables."""
    prose = _FENCE.sub("", text)
    return [" ".join(code.split()) for code in re.findall(r"`(sora [a-z][^`]*)`", prose)]
