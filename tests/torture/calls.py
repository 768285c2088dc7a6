"""Bad Python calls: only ValueError, TypeError or RunError with a message, never nonsense accepted."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from hypothesis import strategies as st

from tests.torture.bench import Bench, check_end
from tests.torture.report import Outcome
from tests.torture.strategies import BY_NAME, bad_fields, drawn, settings_fields

COUNT = 20  # calls per case
LIMIT = 60.0
MEMORY = 3 << 30
REFUSED, ACCEPTED, RAW = 2, 0, 3

EPS = ["8/", "x", "", "1/0", "nan", "inf", "/255", "8//255", "-1/255", math.nan, math.inf, -1.0, None]
BAD_EPS = st.sampled_from([*EPS, [], {}, (1, 2), b"8", object])
NO_COUNT = st.sampled_from([0, -1, 1.5, "x", None, math.nan, [], "10", 2.0**70]) | st.integers(-(10**9), 0)
NO_NAME = st.sampled_from(["nope", "", " ", "SORA", None, 3, b"sora", [], 1.5, {}]) | st.text(max_size=3)
NO_MODEL = st.sampled_from([None, 3, "preactresnet18", [], {}, object])
NO_PATH = st.sampled_from(["/does/not/exist", "/", "/dev/null", "", None, 3, [], "a\0b"])
NO_OPTION = st.just({"nope": 1})


def case(bench: Bench, number: int) -> Outcome:
    """Some calls, each in a process of its own."""
    outcome = Outcome("calls", number)
    rng = bench.rng("calls", number)
    for _ in range(COUNT):
        call = rng.choice(list(calls()))
        [value] = drawn(calls()[call], rng.randrange(2**32), 3)[-1:]
        outcome.inputs += 1
        what = call.replace("VALUE", value.__name__ if isinstance(value, type) else repr(value)[:80])
        place = bench.place(f"calls-{number}")
        ended = bench.child(lambda c=call, v=value: _try(c, v), place, memory=MEMORY).end(LIMIT)
        if check_end(outcome, ended, what, (REFUSED, ACCEPTED, RAW)):
            if ended.code == RAW:
                outcome.add("raw", f"{what}: {ended.out.strip()[:200]}")
            elif ended.code == ACCEPTED:
                outcome.add("accepted", f"{what}: returned {ended.out.strip()[:100]}")
            else:
                outcome.add("refused")
    return outcome


def _try(call: str, value: Any) -> int:
    """Make the call; the exit code says how it ended."""
    from sora.errors import RunError
    from tests.torture import tensors

    try:
        result = eval(call, {**vars(tensors), "VALUE": value})
    except RunError as error:
        return REFUSED if str(error) else RAW
    except BaseException as error:
        print(type(error).__name__, " ".join(str(error).split()))
        expected = isinstance(error, ValueError | TypeError) and type(error) is not UnicodeDecodeError
        ours = type(error).__module__.startswith(("builtins", "sora"))
        return REFUSED if expected and ours and str(error) else RAW
    print(type(result).__name__)
    return ACCEPTED


@cache
def calls() -> dict[str, st.SearchStrategy[Any]]:
    """Each call with one open place, and the values that do not belong there."""
    import sora
    from tests.torture import tensors as t

    text = st.text(max_size=4).filter(lambda value: value not in sora.methods.names())
    given = NO_PATH.filter(lambda value: value is not None)
    return {
        "sora.Linf(VALUE)": BAD_EPS,
        "sora.L2(VALUE)": BAD_EPS,
        "sora.Linf(0.1, box=VALUE)": t.NO_BOX,
        "sora.methods.create(VALUE, threat)": NO_NAME | text,
        "sora.methods.create('sora', VALUE)": t.NO_THREAT,
        "sora.methods.create('sora', threat, beta=VALUE)": t.NO_SHARE,
        "sora.methods.create('pgd', threat, steps=VALUE)": NO_COUNT.filter(lambda value: value != "10"),
        "sora.methods.create('sora', threat, **VALUE)": NO_OPTION,
        "method.step(model, VALUE, y)": t.NO_IMAGES,
        "method.step(model, x, VALUE)": t.NO_LABELS,
        "method.step(VALUE, x, y)": NO_MODEL,
        "sora.models.create(VALUE, 10)": NO_NAME,
        "sora.models.create('preactresnet18', VALUE)": t.NO_SIZE,
        "sora.models.create('preactresnet18', 10, in_channels=VALUE)": t.NO_SIZE,
        "sora.models.create('resnet18', 10, width=VALUE)": t.NO_SIZE,
        "sora.models.create('resnet18', 10, mean=(0.5,) * 3, std=VALUE)": t.NO_STD,
        "sora.models.create('vit-small', 10, image_size=VALUE)": t.NO_SIZE,
        "sora.models.create('resnet18', 10, **VALUE)": NO_OPTION,
        "sora.data.load(VALUE)": NO_NAME | st.sampled_from(BY_NAME["dataset"]),
        "sora.data.check(VALUE)": NO_NAME,
        "sora.data.get('cifar10', '.', VALUE)": given,
        "sora.data.split(sora.data.load('digits'), limit_train=VALUE)": t.NO_LIMIT,
        "sora.data.split(sora.data.load('digits'), holdout=VALUE)": st.sampled_from([-1, 1.5, "x", 10**9]),
        "sora.data.Augment.parse(VALUE)": t.NO_AUGMENT,
        "sora.load(VALUE)": NO_PATH,
        "sora.attacks.create(VALUE)": NO_NAME | st.sampled_from(BY_NAME["attacks"]),
        "sora.attacks.fgsm(VALUE, x, y, threat)": NO_MODEL,
        "sora.attacks.fgsm(model, VALUE, y, threat)": t.NO_IMAGES,
        "sora.attacks.pgd(model, x, VALUE, threat)": t.NO_LABELS,
        "sora.attacks.pgd(model, x, y, VALUE)": t.NO_THREAT,
        "sora.attacks.pgd(model, x, y, threat, steps=VALUE)": NO_COUNT.filter(lambda value: value != 0),
        "sora.attacks.pgd(model, x, y, threat, restarts=VALUE)": NO_COUNT,
        "sora.evaluate(VALUE, (x, y), threat)": NO_MODEL,
        "sora.evaluate(model, (VALUE, y), threat, 'clean,fgsm')": t.NO_IMAGES,
        "sora.evaluate(model, (x, VALUE), threat, 'clean,fgsm')": t.NO_LABELS,
        "sora.evaluate(model, VALUE, threat)": st.sampled_from([None, 3, "digits", [], (), [1, 2]]),
        "sora.evaluate(model, (x, y), VALUE)": t.NO_THREAT,
        "sora.evaluate(model, (x, y), threat, VALUE)": t.NO_ATTACKS,
        "sora.evaluate(model, (x, y), threat, 'clean', batch_size=VALUE)": NO_COUNT,
        "sora.evaluate(model, (x, y), threat, 'clean', num_classes=VALUE)": t.NO_CLASSES,
        "sora.fit(VALUE, pairs, epochs=1, quiet=True)": NO_MODEL,
        "sora.fit(model, VALUE, epochs=1, quiet=True)": t.NO_PAIRS,
        "fit(method=VALUE)": NO_NAME,
        "fit(eps=VALUE)": BAD_EPS,
        "fit(**VALUE)": _bad_settings(),
        "fit(out=VALUE)": st.sampled_from(["/dev/null/x", "/proc/nope/x", 3, "a\0b", "/etc/passwd"]),
        "sora.probes.create(VALUE)": NO_NAME,
        "sora.curvature.pert_align(VALUE, g)": st.sampled_from([None, 3, "x", []]),
        "sora.curvature.linearity(g, g, VALUE)": st.sampled_from(["l1", "", None, 3]),
    }


FIXED = ("dataset", "model", "method", "eps", "out", "width", "mean", "std", "init", "data_dir", "threads")


def _bad_settings() -> st.SearchStrategy[dict[str, Any]]:
    """One bad setting, as `fit` gets it."""
    fields = {name: rest for name, rest in settings_fields().items() if name not in FIXED}
    each = [values.map(lambda v, name=name: {name: v}) for name, values in bad_fields(fields).items()]
    return st.one_of([*each, NO_OPTION])
