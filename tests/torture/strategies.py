"""Values that no option accepts, generated from the types and ranges of the settings."""

import dataclasses
import re
import shlex
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

NO_NUMBER = ("x", "", "ten", "1,5", "--", "0x10", "1e", "[]", "None,1", "1 2")
WORDS = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_.,:/%$\\ é\n\t'\"{}[]", min_size=1, max_size=12)
_BY_NAME = """
dataset: nope folder: folder:/does/not/exist npz:/does/not/exist digits:3 npz:/dev/null cifar10:x
  'folder:/tmp?size=0' 'folder:/tmp?nope=1' '' : npz:/
model: nope torch.nn:Identity os:system json:loads x:y : a:b:c sora.nope:f math:pi builtins:print sora:
  os:_exit builtins:exit
method: nope '' SORA sora,fgsm pgd-0 pgd10
eps: 8/ 300/255 1e30 -1 0 nan 1/0 x '' inf 8/255/2 /255 8//255 0/5
init: /does/not/exist / /dev/null /etc/passwd
device: meta cuda:99 tpu cpu:x '' cuda:-1 CPU9 mps:7 xla
attacks: '' x pgd0 pgd-1 pgd10x0 , clean,x pgd pgd1.5 'fgsm fgsm' pgd10x
monitor: x kl,x pgd10
augment: crop:x nope rotate:x crop:-1 flip,nope
mean: x nan 1,2,3,4,5 0.5,x inf
std: x 0 -1 nan 1,2,3,4,5
milestones: x 2 -1 nan
out: /dev/null/x /proc/nope/x /etc/passwd /etc/passwd/x
set: x =1 sora.nope=1 sora.beta=2 sora.beta=x model.nope=1 fgsm.x=1 'sora.beta={' 'sora.alpha0=[1,2]'
  'sora.beta=!!python/name:os.system' sora.=1 .=1 sora.beta=.nan
config: /does/not/exist / /dev/null /etc/passwd ''
recipe: nope ../digits /etc/passwd digits+nope
resume: maybe no
threads: 9999999
width: 100000000
methods: '' nope , sora,,fgsm all,sora
seeds: 0 -1 x 1.5
jobs: -1 x 1.5
limit: -1 x 1.5
batch_size: 0 -1
norms: l1 '' linf, linf,l7 0
weights: /does/not/exist / /dev/null
confusion: nope
at: -1 999999 x
"""
BY_NAME = {
    name: shlex.split(values)
    for name, values in re.findall(r"^(\w+): ([^\n]*(?:\n  [^\n]*)*)", _BY_NAME, re.M)
}
"""Values of named options that must be refused; those of plain types are generated."""


def bad_values(name: str, hint: Any, limits: Mapping[str, Any]) -> st.SearchStrategy[str]:
    """Text that must not be accepted for an option of this name, type and range."""
    kinds = [arg for arg in get_args(hint) if arg is not type(None)] or [hint]
    known = BY_NAME.get(name, ())
    options = [st.sampled_from(known)] if known else []
    if get_origin(hint) is Literal or get_origin(kinds[0]) is Literal:
        allowed = get_args(hint if get_origin(hint) is Literal else kinds[0])
        options.append(WORDS.filter(lambda text: text not in allowed and not text.startswith("-")))
    elif kinds[0] in (int, float):
        # An empty text is an empty list of numbers.
        options.append(st.sampled_from([text for text in NO_NUMBER if text or get_origin(hint) is not tuple]))
        options += _outside(kinds[0], limits)
        if kinds[0] is int:
            options.append(st.floats(0.01, 0.99).map(lambda value: f"{value:.3f}"))
        else:
            options.append(st.sampled_from(["nan", "inf", "-inf", "1e999"]))
    return st.one_of(options) if options else st.nothing()


def _outside(kind: type, limits: Mapping[str, Any]) -> list[st.SearchStrategy[str]]:
    """Numbers outside a range."""
    found: list[st.SearchStrategy[str]] = []
    low, high, above = (limits.get(key) for key in ("low", "high", "above"))
    if low is not None:
        found.append(st.integers(1, 10**9).map(lambda n: str(low - n)))
    if above is not None:
        found.append(st.integers(0, 10**9).map(lambda n: str(above - n)))
    if high is not None:
        found.append(st.integers(1, 10**9).map(lambda n: str(high + n)))
    return found


def settings_fields() -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Type and range of every setting of a run."""
    from sora.settings import GROUPS

    found = {}
    for group in GROUPS.values():
        hints = get_type_hints(group)
        for field in dataclasses.fields(group):
            found[field.name] = (hints[field.name], dict(field.metadata))
    return found


def flag_fields(flags: Any) -> dict[str, tuple[Any, Mapping[str, Any]]]:
    """Type of every flag of a verb, from its dataclass."""
    hints = get_type_hints(flags)
    return {field.name: (hints[field.name], {}) for field in dataclasses.fields(flags)}


def bad_fields(fields: Mapping[str, tuple[Any, Mapping[str, Any]]]) -> dict[str, st.SearchStrategy[str]]:
    """The bad values of all options that have any."""
    found = {name: bad_values(name, *rest) for name, rest in fields.items()}
    return {name: values for name, values in found.items() if not values.is_empty}


def drawn(strategy: st.SearchStrategy[Any], key: int, count: int) -> list[Any]:
    """So many examples of a strategy, always the same for a key.

    Hypothesis begins with the simplest example, which is left out if there are others.
    """
    found: list[Any] = []

    @seed(key)
    @settings(
        max_examples=count + 1,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found[1:] or found
