"""MkDocs hook: pages that are made from the code, and links that also work on a code host.

A link such as `../SECURITY.md` works where a page is read in the repository. On the site the same file is a
page of its own, so the link is rewritten when the site is built.
"""

import contextlib
import io
import json
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs imports this file by its path

from command_line import reference

from sora.cli import main

ROOT = Path(__file__).parents[2]
# Files outside of docs/ that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CITATION.cff": "citation.md",
    **{f"examples/{path.name}": f"examples/{path.stem}.md" for path in (ROOT / "examples").glob("*.py")},
}
COMMAND_LINE = "reference/command-line.md"

_SOURCES = {page: source for source, page in PAGES.items()}
_LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are no files in docs/."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=as_page(source, text)))
    files.append(File.generated(config, COMMAND_LINE, content=reference()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite links to files of the repository; add the table of options to a method's page."""
    source = Path(page.file.src_uri)
    if source.parent.name == "methods" and source.stem != "README":
        markdown += options(source.stem)
    return site_links(markdown, page.file.src_uri)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Make every picture a link to its file: several panels are small on a phone."""
    return re.sub(r'<img [^>]*src="([^"]+)"[^>]*>', r'<a href="\1">\g<0></a>', html)


def options(method: str) -> str:
    """The options of a method as a table, as `sora show` prints them."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main(["show", method, "--json"])
    rows = json.loads(printed.getvalue())["hyper"]
    cells = [list(rows[0]), ["---"] * len(rows[0])]
    cells += [
        [str(value) for value in (f"`{name}`", *others)] for name, *others in (row.values() for row in rows)
    ]
    return "\n## Options\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"


def as_page(source: str, text: str) -> str:
    """A file as Markdown; a program or a file of settings becomes a page that shows it."""
    language = {".py": "python", ".cff": "yaml"}.get(Path(source).suffix)
    return f"# {Path(source).name}\n\n```{language}\n{text}```\n" if language else text


def site_links(markdown: str, page: str) -> str:
    """The page's links with paths of the repository replaced by paths of the site."""
    source = _SOURCES.get(page, f"docs/{page}")

    def rewritten(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        on_site = PAGES.get(target) or target.removeprefix("docs/")
        return f"{match[1]}{posixpath.relpath(on_site, posixpath.dirname(page) or '.')}{match[3]}"

    return _LINK.sub(rewritten, markdown)
