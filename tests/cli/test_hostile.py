"""Bad flags, hostile files and broken streams on the command line: one line, nothing executed or written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from sora.runs import RunFolder

EVIL = """
from pathlib import Path
Path("EXECUTED").touch()
def build(*args, **options):
    Path("EXECUTED").touch()
"""


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("SORA_DATA", str(tmp_path / "data"))
    Path("evil_module.py").write_text(EVIL)
    return tmp_path / "here"


@pytest.fixture
def trained(finished: Path) -> Path:
    """A finished run."""
    shutil.copytree(finished, "run")
    return Path("run")


def change_config(run: Path, **values: Any) -> None:
    stored = yaml.safe_load((run / "config.yaml").read_text())
    stored.pop("blake2b")  # which would give every change away
    for group in stored.values():
        if isinstance(group, dict):
            group.update({name: value for name, value in values.items() if name in group})
    (run / "config.yaml").write_text(yaml.safe_dump(stored))


def refused(sora: Any, command: str, words: str = "") -> None:
    done = sora(*command.split(), code=None)
    assert done.code in (1, 2)
    assert done.err.count("\n") == 1
    assert done.err.startswith("sora: ")
    assert words in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        "train --config evil.yaml",
        "compare --config evil.yaml --out cmp",
        "train --resume --out run",
        "train --resume auto --out run",
        "evaluate run",
        "probe eps-curve run",
        "probe eps-curve run --at 1",
        "data show --run run",
    ],
)
@pytest.mark.parametrize("code", ["evil_module:build", "os:system"])
def test_no_file_executes_code(arguments: str, code: str, sora, trained: Path) -> None:
    options = {"model.command": "touch EXECUTED"} if code == "os:system" else {}
    Path("evil.yaml").write_text(yaml.safe_dump({"dataset": "digits", "model": code, "set": options}))
    change_config(trained, model=code, set=options, width=None, mean=None, std=None)
    description = json.loads((trained / "model.json").read_text())
    description.pop("blake2b")
    (trained / "model.json").write_text(json.dumps(description | {"name": code}))
    if arguments.startswith("train --resume"):
        (trained / "summary.json").unlink()
    snapshots = RunFolder(trained).snapshots.files()
    arguments = arguments.replace("--at 1", f"--at {min(snapshots)}") if snapshots else arguments
    refused(sora, arguments, code)
    assert not Path("EXECUTED").exists()


def test_what_a_builder_returns_is_checked_before_it_is_used(sora, tiny) -> None:
    Path("builders.py").write_text(
        "class Trap:\n    def __getattribute__(self, name):\n"
        "        if name not in ('__class__', '__dict__'): open('USED', 'w')\n"
        "        return object.__getattribute__(self, name)\n"
        "def build(num_classes): return Trap()\n"
    )
    command = "train --dataset digits --model builders:build --quiet"
    refused(sora, command, "must return a torch.nn.Module, not Trap")
    assert not Path("USED").exists()


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_a_config_names_no_folder_elsewhere(verb: str, sora, tmp_path: Path) -> None:
    Path("evil.yaml").write_text(f"out: {tmp_path / 'elsewhere'}\n")
    refused(sora, f"{verb} --config evil.yaml --dataset digits", "outside the working directory")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "verb", ["evaluate run", "probe eps-curve run", "data show --run run", "train --resume --out run"]
)
def test_a_run_names_no_folder_to_pack_in(verb: str, sora, trained: Path, tmp_path: Path) -> None:
    change_config(trained, dataset="folder:photos", data_dir=str(tmp_path / "elsewhere"))
    if verb.startswith("train"):
        (trained / "summary.json").unlink()
    refused(sora, verb, "outside the working directory")
    assert not (tmp_path / "elsewhere").exists()


def test_a_resumed_run_stays_in_its_folder(sora, tiny, trained: Path, tmp_path: Path) -> None:
    change_config(trained, out=str(tmp_path / "elsewhere"))
    (trained / "summary.json").unlink()
    sora("train", "--resume", "--out", "run", "--quiet")
    assert (trained / "summary.json").exists()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "checkpoints", "snapshots"])
def test_links_in_a_run_are_not_followed_for_writing(name: str, sora, tiny, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir() if "." not in name else target.write_text("keep")
    Path("run").mkdir()
    Path("run", name).symlink_to(target)
    refused(sora, f"train {' '.join(tiny)} --epochs 1 --out run --quiet", "is a link or a special file")
    assert list(target.iterdir()) == [] if target.is_dir() else target.read_text() == "keep"


def test_links_in_a_finished_run_are_not_followed(sora, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    for name in ("probes", "evaluation-state"):
        (trained / name).symlink_to(tmp_path / "target")
    refused(sora, "probe eps-curve run --limit 4 --json", "is a link")
    refused(sora, "evaluate run --attacks pgd3 --quiet", "is a link")
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize("name", ["config.yaml", "model.json", "model.safetensors", "summary.json"])
def test_special_files_in_a_run_do_not_hang(name: str, sora, trained: Path) -> None:
    (trained / name).unlink()
    os.mkfifo(trained / name)
    refused(sora, "evaluate run --attacks clean", "not a regular file")


@pytest.mark.parametrize("content", ["", "[", "[]", "null", "3", "{}", "[" * 100_000, '{"name": 3}', "\x00"])
@pytest.mark.parametrize("name", ["config.yaml", "model.json"])
def test_damaged_files_in_a_run_are_one_line(name: str, content: str, sora, trained: Path) -> None:
    if (name, content) == ("config.yaml", "{}"):
        pytest.skip("all settings have defaults")
    (trained / name).write_text(content)
    refused(sora, "evaluate run --attacks clean")


@pytest.mark.parametrize("verb", ["predict run x.png", "probe samples run --limit 4 --device cpu"])
def test_damaged_weights_are_not_used(verb: str, sora, trained: Path) -> None:
    Image.new("L", (16, 16)).save("x.png")
    content = bytearray((trained / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (trained / "model.safetensors").write_bytes(content)
    sora.refuse("model.safetensors is damaged or was replaced", *verb.split(), code=1)


def test_a_picture_below_a_file_cannot_be_written(sora) -> None:
    Path("file").touch()
    sora.refuse("File exists: file", "data", "show", "digits", "--out", "file/x.png", code=1)


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_help_where_the_default_folder_holds_a_run(verb: str, sora) -> None:
    for folder in ("runs/digits-sora-s0", "runs/compare"):
        Path(folder).mkdir(parents=True)
        Path(folder, "config.yaml").write_text("format: 2\n")
    done = sora(verb, "--help")
    assert done.err == ""
    assert "--epochs" in done.out


def shell(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f'exec "$@" {command}', "bash", sys.executable, "-m", "sora", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


CLOSED = ("2>&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-")


@pytest.mark.parametrize(
    "streams",
    [
        "<&- >&- 2>/dev/full",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("2>/dev/full", *CLOSED, "2> >(true)")),
    ],
)
def test_a_training_survives_its_streams(streams: str, tiny) -> None:
    done = shell(streams, "train", *tiny, "--epochs", "1", "--attacks", "clean", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert json.loads(Path("run/summary.json").read_text())["epochs"] == 1
    lines = Path("run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]  # and nothing that was printed


SLOWER = ("--version", "show sora", "list methods")


@pytest.mark.parametrize(
    "arguments", ["--help", "train --help", *(pytest.param(each, marks=pytest.mark.slow) for each in SLOWER)]
)
def test_a_full_disk_at_the_end_of_a_pipe_is_one_line(arguments: str) -> None:
    done = shell("> /dev/full", *arguments.split())
    assert done.returncode == 1
    assert done.stderr == "sora: No space left on device\n"


def test_a_long_error_is_cut(sora) -> None:
    assert len(sora.refuse("File name too long", "train", "--dataset", "x" * 100_000)) < 2500
