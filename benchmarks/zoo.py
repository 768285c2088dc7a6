"""Build the models of the zoo, `src/sora/zoo/NAME`: train, evaluate, write the weights and the card.

    python benchmarks/zoo.py digits-sora digits-fgsm           # trains in runs/zoo-NAME
    python benchmarks/zoo.py cifar10-sora --run runs/finished  # takes a run that the same command trained
    python benchmarks/zoo.py                                   # all of them

Both steps continue where they were interrupted. An entry is a run folder without its checkpoints, with a card
and the logits of 32 images that are generated from a seed (`tests/runs/test_zoo.py` computes them again). The
images of a data set are never stored.
"""

import argparse
import json
import re
import shlex
import shutil
from pathlib import Path

import torch

import sora
from sora.cli import main as command_line
from sora.cli import train
from sora.cli._parse import parse_with_settings
from sora.runs import LOGS, RunFolder, zoo
from sora.runs.resume import settings_hash
from sora.runs.weights import write_verified

ZOO = Path(sora.__file__).parent / "zoo"
ATTACKS = "clean,fgsm,pgd10,pgd50x10,aa"
LIMITS = (
    "Trained on a CPU with one seed; no other norm or radius, no corrupted and no other images were measured."
    " It shows what the method does on this data set; it is not meant for decisions about people."
)
# The command that trains each, the number of test images it is evaluated on (0: all), what else to know.
ENTRIES = {
    "digits-sora": (
        "sora train --dataset digits --method sora --seed 0",
        0,
        "The data set has 1,797 images of 8x8 pixels, shown at 16x16; n is small and the intervals are wide.",
    ),
    "digits-fgsm": (
        "sora train --dataset digits --method fgsm --seed 0",
        0,
        "A counter-example: it withstands FGSM, the attack it was trained with, and nothing else. Its FGSM"
        " accuracy must not be quoted as robustness.",
    ),
    "cifar10-sora": (
        "sora train --dataset cifar10 --method sora --width 16 --epochs 7 --seed 0"
        " --attacks clean,fgsm,pgd10 --limit-test 1000",
        200,
        "A sixteenth of the parameters and a quarter of the epochs of the paper's setting, so its accuracies"
        " are below the paper's.",
    ),
    "pathmnist-sora": (
        "sora train --dataset pathmnist --method sora --width 16 --limit-train 20000 --epochs 6 --seed 0"
        " --attacks clean,fgsm,pgd10 --limit-test 1000",
        200,
        "Trained on 20,000 images of 89,996. PathMNIST is a benchmark of small images of tissue; the model"
        " is no medical device.",
    ),
}


def build(name: str, run: Path | None) -> None:
    """Train unless a run is given, evaluate, and write the entry."""
    command, limit, note = ENTRIES[name]
    folder = RunFolder(run or Path("runs") / f"zoo-{name}")
    if run is None:
        call([*shlex.split(command)[1:], "--out", str(folder.path), "--resume", "auto", "--quiet"])
    check_settings(folder, command)
    card = ["--card", "--additional-data", "no", "--quiet"]
    call(["evaluate", str(folder.path), "--attacks", ATTACKS, "--limit", str(limit), *card])
    entry = RunFolder(ZOO / name)
    entry.path.mkdir(parents=True, exist_ok=True)
    # Paths of the machine it was trained on have no meaning elsewhere.
    text = (folder.path / "config.yaml").read_text().partition("\n")[2]
    text = re.sub(r"(?m)^  data_dir: .*$", "  data_dir: null", text)
    entry.write_config(re.sub(r"(?m)^  out: .*$", f"  out: runs/zoo-{name}", text))
    files = [folder.log_path(log) for log in LOGS]
    for file in (
        *files,
        folder.evaluations,
        folder.path / "summary.json",
        folder.path / "model.json",
        folder.weights,
    ):
        shutil.copyfile(file, entry.path / file.name)
    write_verified(
        entry.path / "logits.safetensors", {"logits": logits(sora.load(entry), entry.read_model())}
    )
    write_card(entry, folder, name, f"{command} --out runs/zoo-{name}", limit, note)
    size = sum(file.stat().st_size for file in ZOO.rglob("*") if file.is_file())
    print(f"{entry.path}; the zoo has {size / 1e6:.2f} MB")


def call(argv: list[str]) -> None:
    """Run a command of the package; stop if it fails."""
    if code := command_line(argv):
        raise SystemExit(code)


def check_settings(folder: RunFolder, command: str) -> None:
    """Stop unless the run has exactly the settings that its command gives today."""
    flags, given = parse_with_settings(train.Flags, shlex.split(command)[2:], "train")
    wanted = flags.request(given).resolve().settings
    if settings_hash(wanted) != settings_hash(folder.read_settings()):
        raise SystemExit(f"{folder.path} has other settings than: {command}")


def logits(model: torch.nn.Module, description: dict) -> torch.Tensor:
    """Return what a model says about 32 images of noise."""
    size = description["image_size"]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return model(torch.rand(32, description["in_channels"], size, size, generator=generator))


def write_card(entry: RunFolder, folder: RunFolder, name: str, command: str, limit: int, note: str) -> None:
    """Complete the card that `sora evaluate --card` wrote by what is special about the zoo."""
    text, facts = ((folder.results / f"{zoo.CARD}{suffix}").read_text() for suffix in (".md", ".json"))
    plain = f'sora.load("{folder.name}")  # the run folder'
    text, facts = (
        each.replace(plain.replace('"', quote), f"sora.load({quote}zoo:{name}{quote})")
        for each, quote in ((text, '"'), (facts, '\\"'))
    )
    summary = folder.read_summary()
    commit, version = summary["versions"].get("commit", "unknown"), summary["versions"]["sora"]
    evaluation = f"sora evaluate zoo:{name} --attacks {ATTACKS} --limit {limit}"
    text = text.replace(
        "## How it was trained\n",
        f"## How it was trained\n\nRecipe `{folder.read_config()['recipe']}`, seed {summary['seed']}, sora"
        f" {version} at commit `{commit}`; trained and measured with:\n\n"
        f"```sh\n{command}\n{evaluation}\n```\n",
    )
    entry_facts = json.loads(facts)
    entry_facts |= {
        "version": version,
        "commit": commit,
        "commands": [command, evaluation],
        "limits": f"{LIMITS} {note}",
    }
    entry_facts["verdict"] = summary["co"]["verdict"]
    entry.write_card(f"{text}\n## Limits\n\n{LIMITS} {note}\n", entry_facts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ENTRIES))
    parser.add_argument("--run", type=Path, help="a finished run to take, with one NAME")
    flags = parser.parse_args()
    if {*flags.names} - {*ENTRIES} or (flags.run and len(flags.names) != 1):
        parser.error(f"expected names among {', '.join(ENTRIES)}, and one name with --run")
    for each in flags.names or ENTRIES:
        build(each, flags.run)
