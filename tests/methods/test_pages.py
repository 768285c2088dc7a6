"""Every method's page exists, says what the code says, and its example runs."""

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from sora import methods
from sora._typed import allowed_range

ROOT = Path(__file__).parents[2]
FAMILIES = sorted({methods.info(name).family for name in methods.names()})
each_page = pytest.mark.parametrize("name", FAMILIES)


def shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(shown(item) for item in value)
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def allowed(field: Any, hint: Any) -> str:
    """The values that an option may have, as the table of its page says."""
    if bool in (hint, *get_args(hint)):
        return "true, false"
    choices = [get_args(kind) for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal]
    if choices:
        return ", ".join(["none", *choices[0]] if type(None) in get_args(hint) else choices[0])
    return allowed_range(field.metadata) or "any"


@each_page
def test_page_has_every_section_and_every_option_with_its_default_range_and_help(name: str) -> None:
    sections = re.findall(r"^## (.+)$", methods.page(name), flags=re.MULTILINE)
    assert sections == ["Idea", "Formula", "Defaults", "What differs, and why", "Cost", "Example"]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", methods.page(name), flags=re.MULTILINE)
    options = methods.info(name).cls.hyper_class
    hints = get_type_hints(options)
    assert {option: tuple(cells) for option, *cells in rows} == {
        field.name: (shown(field.default), allowed(field, hints[field.name]), field.metadata["help"])
        for field in dataclasses.fields(options)
    }


@each_page
def test_page_and_index_agree_with_the_registry(name: str) -> None:
    entry, text = methods.info(name), methods.page(name)
    assert entry.summary in text
    assert f"Norms: {', '.join(entry.norms)}." in text
    flat = " ".join(text.split())
    if entry.paper:
        assert entry.paper in flat
        assert entry.venue in flat
    assert ("Needs: " + ", ".join(entry.needs) in flat) == bool(entry.needs)
    index = (ROOT / "docs" / "methods" / "README.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| \[.*\]\({name}\.md\) \| (.*?) \|", index, flags=re.MULTILINE)
    assert row == entry.summary


@each_page
def test_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", methods.page(name), flags=re.DOTALL)
    exec(compile(code, f"{name}.md", "exec"), {})
    assert "tensor(" in capsys.readouterr().out


def test_every_page_belongs_to_a_method_or_is_linked_by_the_index_of_results() -> None:
    assert methods.page("pgd-2") == methods.page("pgd-10") == methods.page("pgd")
    pages = sorted(path.stem for path in (ROOT / "docs" / "methods").glob("*.md"))
    assert [name for name in pages if name != "README"] == FAMILIES
    folder = ROOT / "docs" / "results"
    links = re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert sorted(links) == sorted(page.name for page in folder.glob("*.md") if page.name != "README.md")
