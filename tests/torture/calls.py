"""Bad Python calls: only ValueError, TypeError or RunError with a message, never nonsense accepted."""

import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

import sora
from sora.errors import RunError
from tests.torture.bench import RUN_LIMIT, Bench, Outcome, check_end
from tests.torture.strategies import BY_NAME, bad_fields, drawn, settings_fields

COUNT = 20  # calls per case
MEMORY = 3 << 30
REFUSED, ACCEPTED, RAW = 2, 0, 3

EPS = ["8/", "x", "", "1/0", "nan", "inf", "/255", "8//255", "-1/255", math.nan, math.inf, -1.0, None]
BAD_EPS = st.sampled_from([*EPS, [], {}, (1, 2), b"8", object])
NO_COUNT = st.sampled_from([0, -1, 1.5, "x", None, math.nan, [], "10", 2.0**70]) | st.integers(-(10**9), 0)
NO_NAME = st.sampled_from(["nope", "", " ", "SORA", None, 3, b"sora", [], 1.5, {}]) | st.text(max_size=3)
NO_MODEL = st.sampled_from([None, 3, "preactresnet18", [], {}, object])
NO_PATH = st.sampled_from(["/does/not/exist", "/", "/dev/null", "", None, 3, [], "a\0b"])
NO_OPTION = st.just({"nope": 1})
NO_METHOD = st.text(max_size=4).filter(lambda value: value not in sora.methods.names())

# Small valid arguments for calls, and arguments that must be refused.

CLASSES = 3
threat = sora.Linf("8/255")
method = sora.methods.create("sora", threat)
model = nn.Sequential(nn.Flatten(), nn.Linear(2 * 4 * 4, CLASSES))
x = torch.rand(4, 2, 4, 4, generator=torch.Generator().manual_seed(1))
y = torch.arange(4) % CLASSES
g = torch.ones(2, 3)
images, labels = (255 * x).to(torch.uint8).repeat(8, 1, 1, 1), y.repeat(8)
test = (images, labels)
pairs = (test, test)


def fit(**changes: Any) -> Any:
    """Train on a few images."""
    given = {"epochs": 1, "batch_size": 8, "attacks": "clean", "holdout": 0, "threads": 1, "quiet": True}
    return sora.fit(model, pairs, **{**given, **changes})


NO_IMAGES = st.sampled_from([
    x * 255, x - 0.5, x * math.nan, x.clone().fill_(math.inf), (255 * x).to(torch.uint8), x.long(),
    x.to(torch.complex64), x[:0], None, 3, "x", [], x.numpy(), x.tolist(), torch.tensor(0.5), x.bool(),
])  # fmt: skip
NO_LABELS = st.sampled_from([
    y.float(), y[:-1], y - 5, y + CLASSES, y[:, None], y[:0], None, 3, "x", y.tolist(), y.numpy(), y * 10**12,
    -y - 1, nn.functional.one_hot(y, CLASSES), y.to(torch.complex64),
])  # fmt: skip
NO_PAIRS = st.sampled_from([
    None, 3, [], (), (test,), ((images.float(), labels), test), ((images[0], labels), test),
    ((images, labels[:-1]), test), ((images, labels - 9), test), ((images, labels * 10**12), test),
    ((images[:0], labels[:0]), test), (test, (images[:0], labels[:0])), (None, None), "nope",
    (test, (images[:, :1], labels)), ((images, labels.float() + 0.5), test),
    ((images.numpy(), labels.numpy()), test), (test, (images[..., :2], labels)), "folder:/nope",
])  # fmt: skip
BOXES = [(1, 0), (0,), (0, 1, 2), 3, "01", (math.nan, 1), (0, 0), ("a", "b"), (None, 1), [], {}]
NO_BOX = st.sampled_from(BOXES)
NO_THREAT = st.sampled_from([None, "linf", 8 / 255, 3, [], object, {"eps": 1}])
NO_SHARE = st.one_of(st.sampled_from([-0.1, 1.1, math.nan, "x", None, [], {}]), st.floats(1.01, 1e9))
NO_SIZE = st.sampled_from([0, -1, 1.5, "x", math.nan, [], (3,), -(10**9)])
NO_STD = st.sampled_from([(0, 0, 0), (1, 1), "x", 3, (math.nan,) * 3, (-1, 1, 1), ("a", "b", "c"), []])
NO_LIMIT = st.sampled_from([0, -1, 1.5, "x", math.nan, []])
ATTACKS = ["", "x", ",", [], (), 3, [3], "pgd0", ["clean", "nope"], [None], "pgd-1", {"a": 1}]
NO_ATTACKS = st.sampled_from(ATTACKS)
NO_CLASSES = st.sampled_from([-1, 0, 99, "x", 1.5])
NO_AUGMENT = st.sampled_from([("crop:x",), ("nope",), ("crop:-1",), 3, ("rotate:x",)])


def case(bench: Bench, number: int) -> Outcome:
    """Some calls, each in a process of its own."""
    outcome = Outcome("calls", number)
    rng = bench.rng("calls", number)
    for _ in range(COUNT):
        call = rng.choice(list(CALLS))
        [value] = drawn(CALLS[call], rng.randrange(2**32), 3)[-1:]
        outcome.inputs += 1
        what = call.replace("VALUE", value.__name__ if isinstance(value, type) else repr(value)[:80])
        place = bench.place(f"calls-{number}")
        ended = bench.child(lambda c=call, v=value: _try(c, v), place, memory=MEMORY).end(RUN_LIMIT)
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
    try:
        result = eval(call, {**globals(), "VALUE": value})
    except RunError as error:
        return REFUSED if str(error) else RAW
    except BaseException as error:
        print(type(error).__name__, " ".join(str(error).split()))
        expected = isinstance(error, ValueError | TypeError) and type(error) is not UnicodeDecodeError
        ours = type(error).__module__.startswith(("builtins", "sora"))
        return REFUSED if expected and ours and str(error) else RAW
    print(type(result).__name__)
    return ACCEPTED


FIXED = ("dataset", "model", "method", "eps", "out", "width", "mean", "std", "init", "data_dir", "threads")


def _bad_settings() -> st.SearchStrategy[dict[str, Any]]:
    """One bad setting, as `fit` gets it."""
    fields = {name: rest for name, rest in settings_fields().items() if name not in FIXED}
    each = [values.map(lambda v, name=name: {name: v}) for name, values in bad_fields(fields).items()]
    return st.one_of([*each, NO_OPTION])


CALLS: dict[str, st.SearchStrategy[Any]] = {
    "sora.Linf(VALUE)": BAD_EPS,
    "sora.L2(VALUE)": BAD_EPS,
    "sora.Linf(0.1, box=VALUE)": NO_BOX,
    "sora.methods.create(VALUE, threat)": NO_NAME | NO_METHOD,
    "sora.methods.create('sora', VALUE)": NO_THREAT,
    "sora.methods.create('sora', threat, beta=VALUE)": NO_SHARE,
    "sora.methods.create('pgd', threat, steps=VALUE)": NO_COUNT.filter(lambda value: value != "10"),
    "sora.methods.create('sora', threat, **VALUE)": NO_OPTION,
    "method.step(model, VALUE, y)": NO_IMAGES,
    "method.step(model, x, VALUE)": NO_LABELS,
    "method.step(VALUE, x, y)": NO_MODEL,
    "sora.models.create(VALUE, 10)": NO_NAME,
    "sora.models.create('preactresnet18', VALUE)": NO_SIZE,
    "sora.models.create('preactresnet18', 10, in_channels=VALUE)": NO_SIZE,
    "sora.models.create('resnet18', 10, width=VALUE)": NO_SIZE,
    "sora.models.create('resnet18', 10, mean=(0.5,) * 3, std=VALUE)": NO_STD,
    "sora.models.create('vit-small', 10, image_size=VALUE)": NO_SIZE,
    "sora.models.create('resnet18', 10, **VALUE)": NO_OPTION,
    "sora.data.load(VALUE)": NO_NAME | st.sampled_from(BY_NAME["dataset"]),
    "sora.data.check(VALUE)": NO_NAME,
    "sora.data.get('cifar10', '.', VALUE)": NO_PATH.filter(lambda value: value is not None),
    "sora.data.split(sora.data.load('digits'), limit_train=VALUE)": NO_LIMIT,
    "sora.data.split(sora.data.load('digits'), holdout=VALUE)": st.sampled_from([-1, 1.5, "x", 10**9]),
    "sora.data.Augment.parse(VALUE)": NO_AUGMENT,
    "sora.load(VALUE)": NO_PATH,
    "sora.attacks.create(VALUE)": NO_NAME | st.sampled_from(BY_NAME["attacks"]),
    "sora.attacks.fgsm(VALUE, x, y, threat)": NO_MODEL,
    "sora.attacks.fgsm(model, VALUE, y, threat)": NO_IMAGES,
    "sora.attacks.pgd(model, x, VALUE, threat)": NO_LABELS,
    "sora.attacks.pgd(model, x, y, VALUE)": NO_THREAT,
    "sora.attacks.pgd(model, x, y, threat, steps=VALUE)": NO_COUNT.filter(lambda value: value != 0),
    "sora.attacks.pgd(model, x, y, threat, restarts=VALUE)": NO_COUNT,
    "sora.evaluate(VALUE, (x, y), threat)": NO_MODEL,
    "sora.evaluate(model, (VALUE, y), threat, 'clean,fgsm')": NO_IMAGES,
    "sora.evaluate(model, (x, VALUE), threat, 'clean,fgsm')": NO_LABELS,
    "sora.evaluate(model, VALUE, threat)": st.sampled_from([None, 3, "digits", [], (), [1, 2]]),
    "sora.evaluate(model, (x, y), VALUE)": NO_THREAT,
    "sora.evaluate(model, (x, y), threat, VALUE)": NO_ATTACKS,
    "sora.evaluate(model, (x, y), threat, 'clean', batch_size=VALUE)": NO_COUNT,
    "sora.evaluate(model, (x, y), threat, 'clean', num_classes=VALUE)": NO_CLASSES,
    "sora.evaluate(model, (x, y), threat, 'pgd2', seed=VALUE)": st.sampled_from([2**64, 10**400, 1.5, "x"]),
    "sora.fit(VALUE, pairs, epochs=1, quiet=True)": NO_MODEL,
    "sora.fit(model, VALUE, epochs=1, quiet=True)": NO_PAIRS,
    "fit(method=VALUE)": NO_NAME,
    "fit(eps=VALUE)": BAD_EPS.filter(lambda value: value is not None),  # None is its default
    "fit(**VALUE)": _bad_settings(),
    "fit(out=VALUE)": st.sampled_from(["/dev/null/x", "/proc/nope/x", 3, "a\0b", "/etc/passwd"]),
    "sora.probes.create(VALUE)": NO_NAME,
    "sora.curvature.pert_align(VALUE, g)": st.sampled_from([None, 3, "x", []]),
    "sora.curvature.linearity(g, g, VALUE)": st.sampled_from(["l1", "", None, 3]),
}
"""Each call with one open place, and the values that do not belong there."""
