"""Every snippet and command of the documentation runs, or says why it does not."""

import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sora.cli import main
from tests.docs import commands
from tests.docs.pages import PAGES, Block, blocks_of, inline_commands, setup_of, text_of
from tests.experiments.in_process import compute_here

RUNNABLE = ("python", "console", "bash")
TESTED_ELSEWHERE = (
    "CONTRIBUTING.md",  # tests/test_contributing.py
    "docs/methods/",  # tests/methods/test_pages.py
)
ONLY_RESOLVED = "docs/results/"  # measurements of minutes and hours


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run on digits."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("finished") / "a"
    flags = "--dataset digits " + commands.SMALL["train"].replace("--attacks clean", "--attacks clean,fgsm")
    assert main(["train", *flags.split(), "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory with data and modules of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SORA_DATA", str(tmp_path / "data"))
    compute_here(monkeypatch)
    torch.manual_seed(0)
    yield tmp_path
    written = {path.stem for path in tmp_path.glob("*.py")}
    for name in written & set(sys.modules):  # another page may have a module of the same name
        del sys.modules[name]


def parts(page: str, *, slow: bool) -> list[Block]:
    left_out = {"skip"} if slow else {"skip", "slow"}
    blocks = [block for block in blocks_of(text_of(page)) if block.language in RUNNABLE]
    return [block for block in blocks if not left_out & block.directives.keys()]


def run_page(page: str, finished_run: Path, *, slow: bool) -> None:
    """Run the blocks in order, as a reader would: Python blocks share their names."""
    names: dict[str, object] = {}
    exec(compile(setup_of(text_of(page)), f"setup of {page}", "exec"), names)
    for block in blocks_of(text_of(page)):
        if block.file:
            Path(block.file).write_text(block.text)
    for block in parts(page, slow=slow):
        if block.language == "python" and not block.file:
            with warnings.catch_warnings():
                warnings.simplefilter("error", torch.jit.TracerWarning)  # docs/deploy.md exports a model
                exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), names)
        for command in block.commands:
            only_resolve = page.startswith(ONLY_RESOLVED)
            problem = commands.run(command, block.directives, finished_run, only_resolve=only_resolve)
            assert not problem, f"{page}, line {block.line}: {command}\n{problem}"


WITH_CODE = [page for page in PAGES if not page.startswith(TESTED_ELSEWHERE) and parts(page, slow=False)]
SLOW = [page for page in WITH_CODE if parts(page, slow=True) != parts(page, slow=False)]


@pytest.mark.parametrize(
    ("page", "slow"),
    [*((page, False) for page in WITH_CODE), *(pytest.param(p, True, marks=pytest.mark.slow) for p in SLOW)],
)
def test_snippets_and_commands_run(page: str, slow: bool, workplace: Path, finished_run: Path) -> None:
    run_page(page, finished_run, slow=slow)


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_run_or_have_a_reason_and_flags_in_sentences_exist(page: str) -> None:
    text = text_of(page)
    blocks = [block for block in blocks_of(text) if "skip" in block.directives]
    assert all(len(block.directives["skip"].split()) >= 2 for block in blocks)
    skipped = [line for block in blocks for line in block.commands]
    named = inline_commands(text) + [line for line in skipped if line.startswith("sora ")]
    assert {line: unknown for line in named if (unknown := commands.unknown_flags(line))} == {}
    others = [block for block in blocks_of(text_of(page)) if block.language not in RUNNABLE]
    lines = [block.line for block in others if re.search(r"^(\$ |sora |torchrun )", block.text, re.MULTILINE)]
    assert lines == []
