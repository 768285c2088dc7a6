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


def refused(done: Any, words: str = "") -> None:
    assert done.code in (1, 2)
    assert done.err.count("\n") == 1
    assert done.err.startswith("sora: ")
    assert "Traceback" not in done.err
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
    refused(sora(*arguments.split()), code)
    assert not Path("EXECUTED").exists()


def test_what_a_builder_returns_is_checked_before_it_is_used(sora, tiny) -> None:
    Path("builders.py").write_text(
        "class Trap:\n    def __getattribute__(self, name):\n"
        "        if name not in ('__class__', '__dict__'): open('USED', 'w')\n"
        "        return object.__getattribute__(self, name)\n"
        "def build(num_classes): return Trap()\n"
    )
    done = sora("train", "--dataset", "digits", "--model", "builders:build", "--quiet")
    refused(done, "must return a torch.nn.Module, not Trap")
    assert not Path("USED").exists()


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_a_config_names_no_folder_elsewhere(verb: str, sora, tmp_path: Path) -> None:
    Path("evil.yaml").write_text(f"out: {tmp_path / 'elsewhere'}\n")
    refused(sora(verb, "--config", "evil.yaml", "--dataset", "digits"), "outside the working directory")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "verb", ["evaluate run", "probe eps-curve run", "data show --run run", "train --resume --out run"]
)
def test_a_run_names_no_folder_to_pack_in(verb: str, sora, trained: Path, tmp_path: Path) -> None:
    change_config(trained, dataset="folder:photos", data_dir=str(tmp_path / "elsewhere"))
    if verb.startswith("train"):
        (trained / "summary.json").unlink()
    refused(sora(*verb.split()), "outside the working directory")
    assert not (tmp_path / "elsewhere").exists()


def test_a_resumed_run_stays_in_its_folder(sora, tiny, trained: Path, tmp_path: Path) -> None:
    change_config(trained, out=str(tmp_path / "elsewhere"))
    (trained / "summary.json").unlink()
    assert sora("train", "--resume", "--out", "run", "--quiet").code == 0
    assert (trained / "summary.json").exists()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "checkpoints", "snapshots"])
def test_links_in_a_run_are_not_followed_for_writing(name: str, sora, tiny, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir() if "." not in name else target.write_text("keep")
    Path("run").mkdir()
    Path("run", name).symlink_to(target)
    refused(sora("train", *tiny, "--epochs", "1", "--out", "run", "--quiet"), "is a link or a special file")
    assert list(target.iterdir()) == [] if target.is_dir() else target.read_text() == "keep"


def test_links_in_a_finished_run_are_not_followed(sora, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    for name in ("probes", "evaluation-state"):
        (trained / name).symlink_to(tmp_path / "target")
    refused(sora("probe", "eps-curve", "run", "--limit", "4", "--json"), "is a link")
    refused(sora("evaluate", "run", "--attacks", "pgd3", "--quiet"), "is a link")
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize("name", ["config.yaml", "model.json", "model.safetensors", "summary.json"])
def test_special_files_in_a_run_do_not_hang(name: str, sora, trained: Path) -> None:
    (trained / name).unlink()
    os.mkfifo(trained / name)
    refused(sora("evaluate", "run", "--attacks", "clean"), "not a regular file")


@pytest.mark.parametrize("content", ["", "[", "[]", "null", "3", "{}", "[" * 100_000, '{"name": 3}', "\x00"])
@pytest.mark.parametrize("name", ["config.yaml", "model.json"])
def test_damaged_files_in_a_run_are_one_line(name: str, content: str, sora, trained: Path) -> None:
    if (name, content) == ("config.yaml", "{}"):
        pytest.skip("all settings have defaults")
    (trained / name).write_text(content)
    refused(sora("evaluate", "run", "--attacks", "clean"))


BAD = """
compare --jobs -1
compare --jobs 9999999
compare --seeds 0
compare --seeds -3
compare --seeds 99999999
compare --methods ,
demo --jobs -1
demo --epochs 0
train --threads 9999999
train --threads -1
train --attacks ,
train --eps 8/
train --eps 8
train --eps 300/255
train --eps 1e30
train --eps -0.1
train --norm l2 --eps 1e30
train --device meta
train --device nowhere
train --device cpu:x
train --model torch.nn:Identity
train --model torch.nn:Linear
train --model os:getcwd
train --model :
train --config empty.yaml
train --config missing.yaml
train --config=
train --config .
train --config fifo.yaml
train --init fifo.yaml
train --init missing.safetensors
train --set sora.alpha0=[
train --set sora.alpha0=2001-99-99
train --set =
train --recipe nothing
train --dataset folder:
train --dataset folder:missing
train --dataset npz:empty.yaml
train --dataset npz:fifo.yaml
train --out empty.yaml
train --out empty.yaml/run
evaluate missing
evaluate empty.yaml
evaluate --weights fifo.yaml --model resnet18 --dataset digits
evaluate --threads 9999999 missing
probe nothing missing
probe eps-curve missing
data show --run missing
data show digits --images 3
data show digits --out empty.yaml/x.png
data get cifar10 --from fifo.yaml
data check nothing
"""


@pytest.mark.parametrize("line", BAD.strip().splitlines())
def test_a_bad_command_line_is_one_line(line: str, sora) -> None:
    Path("empty.yaml").touch()
    os.mkfifo("fifo.yaml")
    arguments = line.split()
    if arguments[0] == "train" and "--dataset" not in arguments:
        arguments += ["--dataset", "digits", "--epochs", "1", "--quiet"]
    refused(sora(*arguments))


def test_no_attacks_are_refused_before_training(sora) -> None:
    refused(sora("train", "--dataset", "digits", "--attacks", "", "--quiet"), "no attack was given")
    assert not Path("runs").exists()


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_help_where_the_default_folder_holds_a_run(verb: str, sora) -> None:
    for folder in ("runs/digits-sora-s0", "runs/compare"):
        Path(folder).mkdir(parents=True)
        Path(folder, "config.yaml").write_text("format: 2\n")
    done = sora(verb, "--help")
    assert (done.code, done.err) == (0, "")
    assert "--epochs" in done.out


def shell(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f'exec "$@" {command}', "bash", sys.executable, "-m", "sora", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "streams",
    [
        "2>/dev/full",
        "<&- >&- 2>&-",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("2>&-", ">&-", ">&- 2>&-", "2> >(true)")),
    ],
)
def test_a_training_survives_its_streams(streams: str, tiny) -> None:
    done = shell(streams, "train", *tiny, "--epochs", "1", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert json.loads(Path("run/summary.json").read_text())["epochs"] == 1
    lines = Path("run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]  # and nothing that was printed


@pytest.mark.parametrize("arguments", ["--help", "--version", "list methods", "train --help", "show sora"])
def test_a_full_disk_at_the_end_of_a_pipe_is_one_line(arguments: str) -> None:
    done = shell("> /dev/full", *arguments.split())
    assert done.returncode == 1
    assert done.stderr == "sora: No space left on device\n"


def test_a_long_error_is_cut(sora) -> None:
    done = sora("train", "--dataset", "x" * 100_000)
    refused(done)
    assert len(done.err) < 2500
