"""What the tests of the documentation rely on: blocks are found, and mistakes in commands are noticed."""

from pathlib import Path

import pytest

from tests.docs import commands
from tests.docs.pages import blocks_of, inline_commands, setup_of

PAGE = """
<!-- test: setup
answer = 42
-->
Text with `sora train --epochs 3`, and
`sora list
methods`.

<!-- test: slow -->
<!-- test: add --seed 1 -->
```console
$ sora train --dataset digits \\
    --epochs 3   # a comment
output
$ make test
```

  ```yaml
  # mine.yaml
  epochs: 3
  ```
"""


def test_blocks_have_their_commands_directives_and_files() -> None:
    console, yaml = blocks_of(PAGE)
    assert console.commands == ["sora train --dataset digits --epochs 3   # a comment", "make test"]
    assert console.directives == {"slow": "", "add": "--seed 1"}
    assert PAGE.splitlines()[console.line - 1].startswith("$ sora train")
    assert (yaml.file, yaml.text, yaml.directives) == ("mine.yaml", "# mine.yaml\nepochs: 3\n", {})
    assert setup_of(PAGE) == "answer = 42"
    assert inline_commands(PAGE) == ["sora train --epochs 3", "sora list methods"]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("sora train --dataset digits --epoch 3 --dry-run", "unknown flag"),
        ("sora compare --dataset digits --methods fgms", "fgms"),
        ("make tset", "no target tset"),
        ("python benchmarks/none.py", "no file benchmarks/none.py"),
        ("torchrun --standalone -m sora train --widht 3", "unknown flag"),
        ("curl example.org", "curl is not a command of this package"),
    ],
)
def test_a_mistake_in_a_command_is_noticed(command: str, problem: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert problem in commands.run(command, {}, tmp_path, only_resolve=False)


def test_an_unknown_flag_in_a_sentence_is_noticed() -> None:
    assert commands.unknown_flags("sora evaluate RUN --attack aa") == ["--attack"]
    assert commands.unknown_flags("sora data get NAME --from FILE") == []
    assert commands.unknown_flags("sora tran RUN") == ["tran"]
