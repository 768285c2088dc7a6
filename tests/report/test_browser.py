"""The page in headless Chromium; `make test-browser` installs what this needs."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sora.report import write_page
from tests.probes.toys import write_run

pytestmark = pytest.mark.browser
PATIENCE = 120  # seconds; a loaded machine is slow
# Nothing but the page may use the network: no updates, no synchronisation, no first-run pages.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    if chromium is None:
        pytest.skip("no Chromium here")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five comparisons over two data sets, an unfinished run and one with a hostile name."""
    root = tmp_path_factory.mktemp("report")
    pairs = [("digits", model) for model in ("resnet18", "senet18", "preactresnet18")]
    pairs += [("cifar10", model) for model in ("resnet18", "preactresnet18")]
    for number, (dataset, model) in enumerate(pairs):
        for method in ("fgsm", "sora"):
            for seed in (0, 1):
                folder = root / f"comparison{number}" / f"{method}-s{seed}"
                write_run(folder, method, seed, dataset, model, probes=number + seed == 0)
    write_run(root / "unfinished", finished=False)
    write_run(root / "<img src=x onerror=console.error(1)>", "sora", 7)
    write_page([root], root / "page.html")
    return root / "page.html"


class Opened:
    """A page in the browser with what happened in it."""

    def __init__(self, browser: Any, file: Path, width: int = 1440, theme: str = "light") -> None:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        context.set_default_timeout(1000 * PATIENCE)
        self.page = context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def wait(self, condition: str) -> None:
        """Wait for a condition; the page's policy does not let the driver evaluate it by itself."""
        end = time.monotonic() + PATIENCE
        while not self.page.evaluate(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.1)

    def values(self, column: int) -> list[str]:
        script = "c => [...document.querySelectorAll('.sortable tbody tr')].map(r => r.cells[c].innerText)"
        return list(self.page.evaluate(script, column))


DRAWN = "[...document.querySelectorAll('.plot')].every(div => div.dataset.drawn && div.querySelector('svg'))"


@pytest.mark.parametrize("width", [390, 1440])
def test_all_figures_are_drawn_without_errors_or_requests(browser: Any, file: Path, width: int) -> None:
    opened = Opened(browser, file, width)
    opened.page.evaluate("document.querySelectorAll('details').forEach(item => { item.open = true; })")
    opened.wait(DRAWN)
    outside = [url for url in opened.requests if not url.startswith(("data:", "blob:", file.as_uri()))]
    assert (opened.problems, outside) == ([], [])
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_heading_sorts_the_table(browser: Any, file: Path) -> None:
    opened = Opened(browser, file)
    heads = opened.page.evaluate("[...document.querySelectorAll('.sortable thead th')].map(h => h.innerText)")
    column = next(number for number, text in enumerate(heads) if text.startswith("PGD-10"))
    button = opened.page.locator(".sortable thead button").nth(column)
    for state, reverse in (("descending", True), ("ascending", False)):
        button.focus()
        opened.page.keyboard.press("Enter")
        numbers = [float(text.split()[0]) for text in opened.values(column)]
        assert numbers == sorted(numbers, reverse=reverse)
        assert opened.page.locator(f".sortable th[aria-sort={state}]").count() == 1
    opened.page.locator(".sortable thead button").nth(0).click()
    assert opened.values(0) == sorted(opened.values(0), key=str.lower)


def test_pointer_and_arrow_keys_give_step_and_value(browser: Any, file: Path) -> None:
    opened = Opened(browser, file)
    opened.page.evaluate("document.querySelector('.run').open = true")
    plot = opened.page.locator(".run[open] .plot").first
    plot.scroll_into_view_if_needed()
    opened.wait("document.querySelector('.run[open] .plot').dataset.drawn === 'yes'")
    plot.focus()
    opened.page.keyboard.press("ArrowRight")
    hover = "document.querySelector('.run[open] .plot .hoverlayer').textContent"
    opened.wait(f"{hover}.includes('step 20')")
    assert "%" in opened.page.evaluate(hover)
    opened.page.keyboard.press("ArrowRight")
    opened.wait(f"{hover}.includes('step 40')")
    plot.locator(".nsewdrag").first.hover()
    opened.wait(f"{hover}.includes('step ')")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_theme_follows_the_system_and_the_button(browser: Any, file: Path, theme: str) -> None:
    opened = Opened(browser, file, theme=theme)
    opened.wait("document.querySelector('.plot').dataset.drawn === 'yes'")
    background = "getComputedStyle(document.body).backgroundColor"
    ink = "document.querySelector('.plot .xtick text').style.fill"
    before = [opened.page.evaluate(script) for script in (background, ink)]
    assert opened.page.evaluate("document.documentElement.dataset.theme") == theme
    opened.page.locator("#theme").click()
    opened.wait(f"{ink} !== {before[1]!r}")
    assert opened.page.evaluate(background) != before[0]
