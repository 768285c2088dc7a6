"""A file of settings neither takes memory or time, nor makes a run write where the user did not say."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from sora.errors import UserError
from sora.settings import Request, data_dir_of_run
from sora.settings.files import parse_yaml, read_config_file

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def resolve(text: str, **given: Any) -> Any:
    Path("settings.yaml").write_text(text)
    return Request(given, config="settings.yaml").resolve().settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "aliases"),
        (f"{BOMB}epochs: *i\n", "aliases"),
        ("epochs: &x 3\nseed: *x\n", "aliases"),
        ("[" * 20_000, "nested too deeply"),
        ("{" * 20_000, "nested too deeply"),
        ("epochs: 2001-99-99\n", "not YAML"),
        (f"epochs: {'9' * 10_000}\n", "not YAML"),
        ("epochs: !!python/object/apply:os.system [ls]\n", "not YAML"),
        ("x" * 20_000, "not a table"),
        (f"{'x' * 900}: 3\n", "unknown key"),
        (f"epochs: [{'1, ' * 1_000}]\n", "expected an integer"),
        (f"epochs: {'x' * 20_000}\n", "expected an integer"),
        ("", "not a table"),
        ("lr: 0.1\nepochs: 3\nlr: 0.4\n", "'lr' is set twice"),
        ('optimisation: {lr: 0.1, "lr": 0.1}\n', "'lr' is set twice"),
        ("#" * 100_000, "exceeds the limit of 65,536 bytes"),
        ("\x00", "not YAML"),
        ("? [1, 2]\n: 3\n", "not YAML"),
        ("1: 2\n", "unknown key"),
        ("set: {1: 2}\n", "--set key"),
        ("optimisation: {1: 2}\n", "unknown key under optimisation"),
        ("attacks: []\n", "no attack was given"),
        ("eps: 8/\n", "is not a number"),
        ("eps: 8\n", "did you mean 8/255"),
        ("eps: 300/255\n", "larger than the pixel range"),
        ("norm: l2\neps: 1e30\n", "larger than the pixel range"),
        ("norm: [linf]\n", "allowed: linf, l2"),
        ("dataset: [digits]\n", "expected text"),
        ("method: [sora]\n", "expected text"),
        ("model: {a: b}\n", "expected text"),
        ("recipe: [digits]\n", "unknown recipe"),
    ],
)
def test_a_mistake_is_one_short_line(text: str, message: str) -> None:
    started = time.monotonic()
    with pytest.raises(UserError) as caught:
        resolve(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 2500
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 60  # the bomb would take hours


def test_only_regular_files_are_read_as_yaml() -> None:
    os.mkfifo("fifo.yaml")
    for path in ("fifo.yaml", "/dev/zero", "."):
        with pytest.raises(UserError, match=r"not a regular file|is a folder"):
            read_config_file(path)
    text = "a: [1, 2.5, x, null, true]\nb: {c: 'd'}\ne: |\n  text\n"
    assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    "out", ["/tmp/elsewhere", "../elsewhere", "link/run", "~/elsewhere", "~nobody-x/run"]
)
def test_a_file_names_no_run_folder_outside_the_working_directory(out: str) -> None:
    Path("link").symlink_to("..")
    with pytest.raises(UserError, match=r"outside the working directory|not a path"):
        resolve(f"out: '{out}'\n")
    with pytest.raises(UserError, match="would name another run"):
        resolve(f"methods: {{sora: {{out: '{out}'}}}}\n")
    Path("settings.yaml").write_text(f"out: '{out}'\n")
    with pytest.raises(UserError, match=r"outside the working directory|not a path"):
        Request({}, config="settings.yaml").path()
    assert resolve(f"out: '{out}'\n", out=out).out == out


def test_a_file_names_folders_inside_the_working_directory_only() -> None:
    assert resolve("out: runs/a\n").out == "runs/a"
    assert resolve(f"out: '{Path('runs').resolve()}'\n").folder() == Path("runs").resolve()
    assert resolve("dataset: folder:photos\ndata_dir: packed\n").data_dir == "packed"
    own = "dataset: folder:photos\ndata_dir: /tmp/elsewhere\n"
    with pytest.raises(UserError, match=r"data_dir '/tmp/elsewhere' .* repeat it: --data-dir"):
        resolve(own)
    with pytest.raises(UserError, match="outside the working directory"):
        resolve("data_dir: /tmp/elsewhere\n", dataset="npz:a.npz")
    assert resolve(own, data_dir="/tmp/elsewhere").data_dir == "/tmp/elsewhere"
    assert resolve("dataset: cifar10\ndata_dir: /tmp/elsewhere\n").data_dir == "/tmp/elsewhere"  # only read
    with pytest.raises(UserError, match="outside the working directory"):
        resolve("out: /tmp/elsewhere\norigins: {out: flag}\n")
    with pytest.raises(UserError, match="which runs your own code"):
        resolve("model: 'os:system'\norigins: {model: flag}\n")


def test_a_stored_run_names_no_place_to_write_to() -> None:
    first = Request(
        {"dataset": "folder:photos", "data_dir": "/tmp/elsewhere", "out": "/tmp/elsewhere"}
    ).resolve()
    stored = yaml.safe_load(first.stored())
    with pytest.raises(UserError, match=r"data_dir .*stored run.* repeat it"):
        Request({}).resolve(stored)
    Request({"data_dir": "/tmp/elsewhere"}).resolve(stored)  # its `out` does not count: see `settings_of_run`
    with pytest.raises(UserError, match="outside the working directory"):
        data_dir_of_run("folder:photos", "/tmp/elsewhere", None)
    assert data_dir_of_run("folder:photos", "/tmp/elsewhere", "/tmp/mine") == "/tmp/mine"
    assert data_dir_of_run("cifar10", "/tmp/elsewhere", None) == "/tmp/elsewhere"
    assert data_dir_of_run("folder:photos", None, None) is None
