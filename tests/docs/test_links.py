"""Links of the documentation lead somewhere, in the repository and on the site."""

import importlib.util
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from sora.cli import VERBS
from tests.docs.pages import PAGES, ROOT, text_of

MKDOCS = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def load_hook(name: str) -> ModuleType:
    """A module of docs/hooks, which is no package."""
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    try:
        spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "hooks" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


SITE = load_hook("site")


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(path: Path) -> set[str]:
    """What a heading's anchor is called, on the site and on code hosts."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def links(text: str) -> list[str]:
    found = re.findall(r"\]\(([^)\s]+)\)", without_code(text))
    return [link for link in found if not re.match(r"\w+:", link)]


@pytest.mark.parametrize("page", PAGES)
def test_links_work_in_the_repository(page: str) -> None:
    broken = []
    for link in links(text_of(page)):
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def site_pages() -> dict[str, str]:
    """All pages of the site with their text, as MkDocs receives it."""
    pages = {page.removeprefix("docs/"): text_of(page) for page in PAGES if page.startswith("docs/")}
    return pages | {page: SITE.as_page(source, text_of(source)) for source, page in SITE.PAGES.items()}


@pytest.mark.parametrize("page", sorted(site_pages()))
def test_links_work_on_the_site(page: str) -> None:
    pages = site_pages()
    for link in links(SITE.site_links(pages[page], page)):
        file = link.partition("#")[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), file)) if file else page
        assert path in pages or (ROOT / "docs" / path).exists(), link


def in_navigation(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from in_navigation(inner)


def test_every_page_is_in_the_navigation_and_that_of_the_command_line_has_every_verb() -> None:
    listed = list(in_navigation(MKDOCS["nav"]))
    assert sorted(listed) == sorted([*site_pages(), SITE.COMMAND_LINE])
    page = load_hook("command_line").reference()
    assert [verb for verb in VERBS if f"\n## sora {verb}\n" not in page] == []
    assert [flag for flag in ("--eps-warmup NUMBER", "--via", "--save-adversarial") if flag not in page] == []
    assert max(map(len, page.splitlines())) <= 120  # one column of options, not two


def test_the_site_adds_the_options_to_a_methods_page() -> None:
    assert "\n| `sora.direction` | unit | unit, raw | l2 only: " in SITE.options("sora")
