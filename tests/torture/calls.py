"""Bad Python calls: only ValueError, TypeError or RunError with a message, never nonsense accepted."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from hypothesis import strategies as st

from tests.torture.bench import Bench, check_end
from tests.torture.report import Outcome
from tests.torture.strategies import BY_NAME, bad_values, drawn, settings_fields

COUNT = 20  # calls per case
LIMIT = 60.0
MEMORY = 3 << 30
REFUSED, ACCEPTED, RAW = 2, 0, 3

BAD_EPS = st.one_of(
    st.sampled_from(["8/", "x", "", "1/0", "nan", "inf", "/255", "8//255", "-1/255"]),
    st.sampled_from([math.nan, math.inf, -1.0, None, [], {}, (1, 2), b"8", object]),
)
NO_COUNT = st.one_of(
    st.sampled_from([0, -1, 1.5, "x", None, math.nan, [], "10", 2.0**70]), st.integers(-(10**9), 0)
)
NO_NAME = st.one_of(
    st.sampled_from(["nope", "", " ", "SORA", None, 3, b"sora", [], 1.5, {}]), st.text(max_size=3)
)
NO_MODEL = st.sampled_from([None, 3, "preactresnet18", [], {}, object])
NO_PATH = st.sampled_from(["/does/not/exist", "/", "/dev/null", "", None, 3, [], "a\0b"])


def case(bench: Bench, number: int) -> Outcome:
    """Some calls, each in a process of its own."""
    outcome = Outcome("calls", number)
    rng = bench.rng("calls", number)
    for _ in range(COUNT):
        name = rng.choice(list(calls()))
        [value] = drawn(calls()[name][1], rng.randrange(2**32), 3)[-1:]
        outcome.inputs += 1
        shown = value.__name__ if isinstance(value, type) else repr(value)[:80]
        what = name.format(shown)
        place = bench.place(f"calls-{number}")
        ended = bench.child(lambda n=name, v=value: _try(n, v), place, memory=MEMORY).end(LIMIT)
        if check_end(outcome, ended, what, (REFUSED, ACCEPTED, RAW)):
            if ended.code == RAW:
                outcome.add("raw", f"{what}: {ended.out.strip()[:200]}")
            elif ended.code == ACCEPTED:
                outcome.add("accepted", f"{what}: returned {ended.out.strip()[:100]}")
            else:
                outcome.add("refused")
    return outcome


def _try(name: str, value: Any) -> int:
    """Make the call; the exit code says how it ended."""
    from sora.errors import RunError

    try:
        result = calls()[name][0](value)
    except RunError as error:
        return REFUSED if str(error) else RAW
    except (ValueError, TypeError) as error:
        if type(error).__module__.startswith(("builtins", "sora")) and type(error) is not UnicodeDecodeError:
            print(type(error).__name__, error)
            return REFUSED if str(error) else RAW
        print(type(error).__name__, error)
        return RAW
    except BaseException as error:
        print(type(error).__name__, " ".join(str(error).split()))
        return RAW
    print(type(result).__name__)
    return ACCEPTED


@cache
def calls() -> dict[str, tuple[Callable[[Any], Any], st.SearchStrategy[Any]]]:
    """Each call with one open place, and the values that do not belong there."""
    import torch

    import sora
    from tests.torture import tensors as t

    threat, step = sora.Linf("8/255"), _step
    text = st.text(max_size=4).filter(lambda value: value not in sora.methods.names())
    return {
        "sora.Linf({})": (sora.Linf, BAD_EPS),
        "sora.L2({})": (sora.L2, BAD_EPS),
        "sora.Linf(0.1, box={})": (lambda v: sora.Linf(0.1, box=v), t.NO_BOX),
        "sora.methods.create({}, threat)": (lambda v: sora.methods.create(v, threat), NO_NAME | text),
        "sora.methods.create('sora', {})": (lambda v: sora.methods.create("sora", v), t.NO_THREAT),
        "sora.methods.create('sora', threat, beta={})": (
            lambda v: sora.methods.create("sora", threat, beta=v), t.NO_SHARE),
        "sora.methods.create('pgd', threat, steps={})": (
            lambda v: sora.methods.create("pgd", threat, steps=v), NO_COUNT.filter(lambda v: v != "10")),
        "sora.methods.create('sora', threat, **{})": (
            lambda v: sora.methods.create("sora", threat, **v), st.just({"nope": 1})),
        "method.step(model, {}, y)": (lambda v: step(x=v), t.NO_IMAGES),
        "method.step(model, x, {})": (lambda v: step(y=v), t.NO_LABELS),
        "method.step({}, x, y)": (lambda v: step(model=v), NO_MODEL),
        "sora.models.create({}, 10)": (lambda v: sora.models.create(v, 10), NO_NAME),
        "sora.models.create('preactresnet18', {})": (lambda v: sora.models.create("preactresnet18", v),
        t.NO_SIZE),
        "sora.models.create('preactresnet18', 10, in_channels={})": (
            lambda v: sora.models.create("preactresnet18", 10, in_channels=v), t.NO_SIZE),
        "sora.models.create('resnet18', 10, width={})": (
            lambda v: sora.models.create("resnet18", 10, width=v), t.NO_SIZE.filter(lambda v: v is not None)),
        "sora.models.create('resnet18', 10, std={})": (
            lambda v: sora.models.create("resnet18", 10, mean=(0.5,) * 3, std=v), t.NO_STD),
        "sora.models.create('vit-small', 10, image_size={})": (
            lambda v: sora.models.create("vit-small", 10, image_size=v), t.NO_SIZE),
        "sora.models.create('resnet18', 10, **{})": (
            lambda v: sora.models.create("resnet18", 10, **v), st.just({"nope": 1})),
        "sora.data.load({})": (sora.data.load, NO_NAME | st.sampled_from(BY_NAME["dataset"])),
        "sora.data.check({})": (sora.data.check, NO_NAME),
        "sora.data.get('cifar10', given={})": (
            lambda v: sora.data.get("cifar10", ".", v), NO_PATH.filter(lambda v: v is not None)),
        "sora.data.split(digits, limit_train={})": (
            lambda v: sora.data.split(t.digits(), limit_train=v), t.NO_LIMIT),
        "sora.data.split(digits, holdout={})": (
            lambda v: sora.data.split(t.digits(), holdout=v), st.sampled_from([-1, 1.5, "x", 10**9])),
        "sora.data.Augment.parse({})": (
            sora.data.Augment.parse, st.sampled_from([("crop:x",), ("nope",), ("crop:-1",), 3,
            ("rotate:x",)])),
        "sora.load({})": (sora.load, NO_PATH),
        "sora.attacks.create({})": (sora.attacks.create, NO_NAME | st.sampled_from(BY_NAME["attacks"])),
        "sora.attacks.fgsm({}, x, y, threat)": (lambda v: sora.attacks.fgsm(v, t.x(), t.y(), threat),
        NO_MODEL),
        "sora.attacks.fgsm(model, {}, y, threat)": (
            lambda v: sora.attacks.fgsm(t.model(), v, t.y(), threat), t.NO_IMAGES),
        "sora.attacks.pgd(model, x, {}, threat)": (
            lambda v: sora.attacks.pgd(t.model(), t.x(), v, threat), t.NO_LABELS),
        "sora.attacks.pgd(model, x, y, {})": (
            lambda v: sora.attacks.pgd(t.model(), t.x(), t.y(), v), t.NO_THREAT),
        "sora.attacks.pgd(model, x, y, threat, steps={})": (
            lambda v: sora.attacks.pgd(t.model(), t.x(), t.y(), threat, steps=v),
            NO_COUNT.filter(lambda v: v != 0)),
        "sora.attacks.pgd(model, x, y, threat, restarts={})": (
            lambda v: sora.attacks.pgd(t.model(), t.x(), t.y(), threat, restarts=v), NO_COUNT),
        "sora.evaluate({}, (x, y), threat)": (lambda v: sora.evaluate(v, (t.x(), t.y()), threat), NO_MODEL),
        "sora.evaluate(model, ({}, y), threat)": (
            lambda v: sora.evaluate(t.model(), (v, t.y()), threat, "clean,fgsm"), t.NO_IMAGES),
        "sora.evaluate(model, (x, {}), threat)": (
            lambda v: sora.evaluate(t.model(), (t.x(), v), threat, "clean,fgsm"), t.NO_LABELS),
        "sora.evaluate(model, {}, threat)": (
            lambda v: sora.evaluate(t.model(), v, threat), st.sampled_from([None, 3, "digits", [], (), [1,
            2]])),
        "sora.evaluate(model, data, {})": (
            lambda v: sora.evaluate(t.model(), (t.x(), t.y()), v), t.NO_THREAT),
        "sora.evaluate(model, data, threat, {})": (
            lambda v: sora.evaluate(t.model(), (t.x(), t.y()), threat, v), t.NO_ATTACKS),
        "sora.evaluate(..., batch_size={})": (
            lambda v: sora.evaluate(t.model(), (t.x(), t.y()), threat, "clean", batch_size=v), NO_COUNT),
        "sora.evaluate(..., num_classes={})": (
            lambda v: sora.evaluate(t.model(), (t.x(), t.y()), threat, "clean", num_classes=v),
            st.sampled_from([-1, 0, 99, "x", 1.5])),
        "sora.fit({}, data)": (lambda v: sora.fit(v, t.pairs(), epochs=1, quiet=True), NO_MODEL),
        "sora.fit(model, {})": (lambda v: sora.fit(t.model(), v, epochs=1, quiet=True), t.NO_PAIRS),
        "sora.fit(model, data, {})": (lambda v: t.fit(method=v), NO_NAME),
        "sora.fit(model, data, eps={})": (lambda v: t.fit(eps=v), BAD_EPS),
        "sora.fit(model, data, **{})": (lambda v: t.fit(**v), _bad_settings()),
        "sora.fit(model, data, out={})": (
            lambda v: t.fit(out=v), st.sampled_from(["/dev/null/x", "/proc/nope/x", 3, "a\0b",
            "/etc/passwd"])),
        "sora.probes.create({})": (sora.probes.create, NO_NAME),
        "sora.curvature.pert_align({}, g)": (
            lambda v: sora.curvature.pert_align(v, torch.ones(2, 3)), st.sampled_from([None, 3, "x", []])),
        "sora.curvature.linearity(g, g, {})": (
            lambda v: sora.curvature.linearity(torch.ones(2, 3), torch.ones(2, 3), v),
            st.sampled_from(["l1", "", None, 3])),
    }  # fmt: skip


def _bad_settings() -> st.SearchStrategy[dict[str, Any]]:
    """One bad setting, as `fit` gets it."""
    fixed = (
        "dataset",
        "model",
        "method",
        "eps",
        "out",
        "width",
        "mean",
        "std",
        "init",
        "data_dir",
        "threads",
    )
    each = [
        bad_values(name, hint, limits).map(lambda value, name=name: {name: value})
        for name, (hint, limits) in settings_fields().items()
        if name not in fixed and not bad_values(name, hint, limits).is_empty
    ]
    return st.one_of([*each, st.just({"nope": 1})])


def _step(**changes: Any) -> Any:
    import sora
    from tests.torture import tensors as t

    given = {"model": t.model(), "x": t.x(), "y": t.y(), **changes}
    return sora.methods.create("sora", sora.Linf("8/255")).step(given["model"], given["x"], given["y"])
