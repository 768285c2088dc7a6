"""Every method's page exists and agrees with the code; the loop of the index runs with every method."""

import dataclasses
import re
from pathlib import Path

import pytest

from sora import methods

ROOT = Path(__file__).parents[2]
INDEX = (ROOT / "docs" / "methods" / "README.md").read_text(encoding="utf-8")
FAMILIES = sorted({methods.info(name).family for name in methods.names()})
each_page = pytest.mark.parametrize("name", FAMILIES)


@each_page
def test_page_has_every_section_and_names_only_options_that_exist(name: str) -> None:
    text = methods.page(name)
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == ["Update rule", "Differences", "Use"]
    options = {field.name for field in dataclasses.fields(methods.info(name).cls.hyper_class)}
    assert set(re.findall(r"(?<=[`, ])([a-z]\w*)=\w", text)) - options == set()


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
    (row,) = re.findall(rf"^\| \[.*\]\({name}\.md\) \| (.*?) \|", INDEX, flags=re.MULTILINE)
    assert row == entry.summary


@pytest.mark.parametrize("name", methods.names())
def test_the_loop_of_the_index_runs_with_every_method(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", INDEX, flags=re.DOTALL)
    exec(compile(code.replace("fgsm-mep", name), "docs/methods/README.md", "exec"), {})
    assert capsys.readouterr().out.count("tensor(") > 2


def test_every_page_belongs_to_a_method_or_is_linked_by_the_index_of_results() -> None:
    assert methods.page("pgd-2") == methods.page("pgd-10") == methods.page("pgd")
    pages = sorted(path.stem for path in (ROOT / "docs" / "methods").glob("*.md"))
    assert [name for name in pages if name != "README"] == FAMILIES
    folder = ROOT / "docs" / "results"
    links = re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert sorted(links) == sorted(page.name for page in folder.glob("*.md") if page.name != "README.md")
