"""Property tests repeatable from a printed seed: `pytest --hypothesis-seed=N` draws the same examples."""

import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings

# The time an example takes depends on the load of the machine, so there is no deadline.
settings.register_profile("sora", deadline=None, print_blob=True)
settings.load_profile("sora")

_VARIABLE = "HYPOTHESIS_SEED"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the device of `tests/accelerator`, whose tests are left out without it."""
    parser.addoption("--device", help="run tests/accelerator on this: emulated, or cuda, mps, xpu")


@pytest.hookimpl(tryfirst=True)  # before the plugin of Hypothesis reads the option
def pytest_configure(config: pytest.Config) -> None:
    """Choose a seed unless one is given. The workers of pytest-xdist inherit it by the environment."""
    chosen = config.option.hypothesis_seed or os.environ.get(_VARIABLE) or str(random.randrange(2**32))
    config.option.hypothesis_seed = os.environ[_VARIABLE] = chosen
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the seed below the failures, because `-q` hides pytest's header."""
    terminalreporter.write_line(f"property tests: --hypothesis-seed={config.option.hypothesis_seed}")


@dataclass
class Printed:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


@dataclass
class CommandLine:
    """Calls the command line in this process: the code of the `sora` command, without its start-up."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: object, code: int | None = 0) -> Printed:
        """`sora("train", "--epochs", 3)`, which must end with this exit code; None: with any."""
        import torch

        from sora.cli import main

        torch.set_num_threads(1)
        self.capsys.readouterr()
        found = main([str(argument) for argument in arguments])
        printed = Printed(found, *self.capsys.readouterr())
        assert code in (None, found), printed.err
        return printed

    def json(self, *arguments: object) -> Any:
        """What a command prints with `--json`."""
        return json.loads(self(*arguments, "--json").out)

    def refuse(self, words: str, *arguments: object, code: int = 2) -> str:
        """The one line with which a command is refused; it has these words, and nothing else is printed."""
        done = self(*arguments, code=code)
        assert (done.out, done.err[:6], done.err.count("\n")) == ("", "sora: ", 1), done.err
        assert words in done.err
        return done.err


@pytest.fixture
def sora(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line."""
    return CommandLine(capsys)


@pytest.fixture(autouse=True)
def _registries_as_before() -> Iterator[None]:
    """Forget after each test the methods, attacks, models and data sets that it registered."""
    from sora.attacks._base import ATTACKS
    from sora.data._base import DATA
    from sora.methods._base import METHODS
    from sora.models import MODELS

    with ExitStack() as stack:
        for registry in (METHODS, ATTACKS, MODELS, DATA):
            registry.discover()
            stack.enter_context(mock.patch.dict(registry.entries))
        yield
