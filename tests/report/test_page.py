"""The page of `sora report`: what it shows, what it says is missing, and that it executes no foreign text."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from sora.errors import UserError
from sora.evaluation.scores import VERDICTS, verdict
from sora.probes._records import read_runs, settings_of, title_of
from sora.report import words, write_page
from sora.report.words import MEANING, _leading_number, settings_by_group
from sora.settings import GROUPS, Resolved, Settings
from tests.probes.toys import write_run

pytest.importorskip("plotly")
SCRIPT = "<script>alert(1)</script>"


class Reader(HTMLParser):
    """The elements of a page, and the text outside scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self.inside:
            self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append(data)
        elif not self.inside:
            self.text += data

    def count(self, tag: str, **attributes: str) -> int:
        return sum(name == tag and attributes.items() <= attrs.items() for name, attrs in self.tags)


Shown = tuple[Reader, list[dict[str, Any]]]


def read(paths: list[Path], out: Path) -> Shown:
    """The page of some runs, and what Plotly draws in it."""
    write_page(paths, out)
    page = Reader()
    page.feed(out.read_text(encoding="utf-8"))
    plots = json.loads(page.scripts[0])
    return page, plots


def names_of(plots: list[dict[str, Any]]) -> set[str]:
    return {trace.get("name", "") for plot in plots for trace in plot["data"]}


def test_results_of_earlier_weights_and_runs_given_twice_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", probes=True)
    run.write_model({}, {})
    curve = run.read_probe("eps-curve")
    assert curve is not None
    run.write_probe("eps-curve", curve | {"weights_blake2b": "of earlier weights"})
    page, _ = read([run.path], tmp_path / "page.html")
    assert "No eps curve of these weights; the stored result is of earlier ones." in page.text
    assert "No loss landscape" not in page.text  # its file is of an older version, without a checksum
    runs = [write_run(tmp_path / f"sora-s{seed}", "sora", seed) for seed in (0, 1)]
    runs += [write_run(tmp_path / "fgsm-s0"), write_run(tmp_path / "copy", "sora", 1)]
    page, _ = read([run.path for run in runs], tmp_path / "page.html")
    assert "45.5 ± 0.7" in page.text
    assert "copy has the settings and the seed of sora-s1 and is not compared." in page.text


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """The page of one run with probes."""
    folder = tmp_path_factory.mktemp("page")
    found = read([write_run(folder / "collapsed", probes=True).path], folder / "page.html")
    assert (folder / "page.html").stat().st_size < 6_000_000
    return found


def test_a_run_has_verdict_accuracies_curves_probes_cost_and_settings(collapsed: Shown) -> None:
    page, plots = collapsed
    for text in (
        "overfitted catastrophically",
        "first alarm was raised at step 40",
        "85.0",
        "82.0 to 88.0",
        "360",
        "Peak memory",
        "recipe digits",
        "Attacked images",
    ):
        assert text in page.text, text
    assert {"training loss", "PertAlign", "linearity coefficient", "step size", "alarm"} <= names_of(plots)
    assert {"clean", "FGSM", "PGD-10"} <= names_of(plots)
    assert any(trace["type"] == "contour" for plot in plots for trace in plot["data"])
    assert page.count("img") == 3 * 4 + 1  # attacked images in three rows, and the preview of a figure
    assert page.count("div", **{"class": "plot"}) == len(plots)
    assert "Not shown" not in page.text


def test_groups_of_settings_verdicts_and_attacks_have_words_and_passes_an_order() -> None:
    config = yaml.safe_load(Resolved(Settings(), {}).stored())
    assert [group["name"] for group in settings_by_group(config)] == list(GROUPS)
    assert set(VERDICTS) <= set(MEANING)
    assert [title_of(name) for name in ("pgd10", "aa", "pgd20")] == ["PGD-10", "AutoAttack", "pgd20"]
    forwards = ("4", "2 + 1/q", "2.5", "steps + 1", "-")
    assert [_leading_number(text) for text in forwards] == [4.0, 2.0, 2.5, float("inf"), float("inf")]


def test_a_sora_run_shows_the_cap_of_its_step(tmp_path: Path) -> None:
    _, plots = read([write_run(tmp_path / "s", "sora").path], tmp_path / "page.html")
    [step_size] = [plot for plot in plots if "step size" in names_of([plot])]
    assert {"cap = 2 eps", "eps = 25.5/255"} <= names_of([step_size])
    heights = [shape["y0"] for shape in step_size["layout"]["shapes"]]
    assert heights == pytest.approx([25.5, 51.0])


def test_comparisons_over_two_data_sets_share_one_table(tmp_path: Path) -> None:
    for dataset in ("digits", "cifar10"):
        for method in ("fgsm", "sora"):
            for seed in (0, 1):
                write_run(tmp_path / dataset / f"{method}-s{seed}", method, seed, dataset)
    page, plots = read([tmp_path / "digits", tmp_path / "cifar10"], tmp_path / "page.html")
    assert page.count("dl", **{"class": "answers"}) == 2
    assert (
        "has the highest accuracy under PGD‑10 of 2 (fgsm: overfitted) on digits, preactresnet18" in page.text
    )
    assert "of 360 images withstand PGD‑10 and the other attacks, in the lowest of 2 seeds" in page.text
    assert page.count("details", **{"class": "run", "open": None}) == 0
    assert page.count("th", **{"aria-sort": "none"}) == 11
    assert "For all rows: Network preactresnet18, eps 0.1, Seeds 2, n 360." in page.text
    assert "45.5 ± 0.7" in page.text
    for title in ("Relative overview", "Accuracy against cost", "Training, all runs", "Spread over seeds"):
        assert title in page.text
    relative = next(plot for plot in plots if "cifar10<br>preactresnet18" in str(plot["layout"]))
    values = {trace["name"]: trace["y"] for trace in relative["data"]}
    assert values["sora"] == [1.0, 1.0]
    assert values["fgsm"] == pytest.approx([0.01 / 0.455] * 2, rel=1e-3)


def test_verdicts_that_differ_between_seeds_are_counted(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        run = write_run(tmp_path / f"sora-s{seed}", "sora", seed)
    summary = run.read_summary()
    run.write_summary(summary | {"co": {**summary["co"], "verdict": "suspect"}})
    page, _ = read([tmp_path], tmp_path / "page.html")
    assert "1 suspect, 2 robust" in page.text


def test_the_first_picture_is_there_before_plotly_and_the_page_asks_for_nothing_from_outside(
    collapsed: Shown,
) -> None:
    page, plots = collapsed
    assert len(plots) > 1
    [preview] = [attrs for tag, attrs in page.tags if tag == "img" and attrs.get("class") == "preview"]
    kind, _, content = str(preview["src"]).partition(";base64,")
    assert kind == "data:image/svg+xml"
    assert b"<svg" in base64.b64decode(content)
    for tag, attrs in page.tags:
        address = attrs.get("src") or attrs.get("href") or ""
        assert not address or address.startswith(("data:", "#")), (tag, address)
    [policy] = [attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv")]
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy


def test_text_of_files_is_never_markup(tmp_path: Path) -> None:
    hostile = f"x{SCRIPT}".replace("/", "\u2215")  # a file name has no slash
    for seed in (0, 1):
        write_run(tmp_path / f"{hostile}{seed}", "sora", seed, dataset=f"{SCRIPT}<b>", model="</script><i>")
    calm, _ = read(
        [write_run(tmp_path / "a").path, write_run(tmp_path / "b", "sora").path], tmp_path / "a.html"
    )
    page, plots = read([tmp_path / f"{hostile}{seed}" for seed in (0, 1)], tmp_path / "b.html")
    assert page.count("script") == calm.count("script") == 3
    assert page.count("b") == page.count("i") == 0
    assert SCRIPT in page.text  # shown as it is
    shown = json.dumps(plots)
    assert "&lt;script&gt;" in shown
    assert "<script" not in shown


def test_an_unfinished_run_is_shown_with_the_command_that_continues_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "my run", finished=False)
    page, plots = read([run.path], tmp_path / "page.html")
    assert "It has logged 60 steps, up to epoch 3." in page.text
    assert f"sora train --config '{run.path}'/config.yaml --out '{run.path}' --resume auto" in page.text
    assert "training loss" in names_of(plots)


def test_a_run_without_evaluations_is_shown_with_the_commands_that_make_them_and_with_later_ones(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "a", "sora")
    (run.path / "evals.jsonl").write_text("")
    full = run.read_summary()
    run.write_summary(full | {"accuracy": {}, "attacks": {}, "co": {**full["co"], "verdict": None}})
    page, plots = read([run.path], tmp_path / "page.html")
    assert "There is no verdict" in page.text
    assert f"sora evaluate {run.path} --attacks clean,fgsm,pgd10" in page.text
    assert f"--eval-every 1 --out {run.path}-evaluated" in page.text
    assert "training loss" in names_of(plots)
    assert "held-out images" not in json.dumps(plots)
    facts = {key: full[key] for key in ("threat", "accuracy", "attacks", "fingerprint")}
    stored = {"verdict": "robust", "predictions": {}, "num_classes": 10, "zero_gradients": 0.0}
    run.write_evaluations([facts | stored])
    page, _ = read([run.path], tmp_path / "page.html")
    assert "It is robust" in page.text
    assert "42.0 to 48.0" in page.text  # under PGD-10


@pytest.mark.parametrize(("split", "other"), [("training", "held-out"), ("holdout", "training")])
def test_accuracies_while_training_name_their_images(split: str, other: str, tmp_path: Path) -> None:
    runs = [write_run(tmp_path / method, method, split=split).path for method in ("fgsm", "sora")]
    page, plots = read(runs, tmp_path / "page.html")
    images = "training images" if split == "training" else "held-out images"
    assert f" on {images}). PertAlign" in page.text  # where robustness peaked
    assert f"accuracy on {images}" in json.dumps(plots)
    assert f"Accuracy under PGD-10 on {images}" in page.text
    assert f"on {other} images" not in page.text


TRUSTED = {"trust": [{"test": "noise", "outcome": "passed", "text": ""}]}
FAILED = {"trust": [{"test": "noise", "outcome": "failed", "text": ""}]}


@pytest.mark.parametrize(
    ("later", "answer", "reason"),
    [
        ([], "Not yet", "until AutoAttack and the masking tests are run: sora evaluate"),
        ([{"accuracy": {"aa": 0.4}}], "Not yet", "until the masking tests are run"),
        ([{"accuracy": {"aa": 0.4}, **TRUSTED}], "Nothing speaks against it", "no masking test failed"),
        ([{"accuracy": {"aa": 0.4}, **FAILED}], "No", "Failed masking tests: noise"),
    ],
)
def test_the_first_words_are_method_worst_case_and_trust(later, answer, reason, tmp_path) -> None:
    run = write_run(tmp_path / "a", "sora")
    summary = run.read_summary()
    facts = {"threat": summary["threat"], "fingerprint": summary["fingerprint"], "num_classes": 10}
    facts |= {"attacks": {"aa": {"n": 200, "low": 0.33, "high": 0.47}}, "predictions": {}}
    facts |= {"verdict": "robust", "zero_gradients": 0.0}
    run.write_evaluations([facts | own for own in later])
    [setting] = settings_of(read_runs([run.path]), [])
    method, robust, trust = words.answers(setting)
    assert method[1] == "sora"
    assert robust[1] == ("40.0 %" if later else "45.0 %")
    assert ("33.0 to 47.0" if later else "42.0 to 48.0") in robust[2]
    assert trust[1] == answer
    assert reason in trust[2]


def test_a_figure_of_a_single_point_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", "sora")
    first = (run.path / "evals.jsonl").read_text().splitlines()[0]
    (run.path / "evals.jsonl").write_text(f"{first}\n")
    _, plots = read([run.path], tmp_path / "page.html")
    assert "held-out images" not in json.dumps(plots)
    assert "training loss" in names_of(plots)


def test_missing_probes_are_named_with_their_commands(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    run.write_model({}, {})
    missing = write_page([run.path], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    for name in ("eps-curve", "landscape", "samples"):
        assert f"<code>sora probe {name} {run.path}</code>" in text
    assert len(missing) == 3


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metrics.jsonl", '{"step": "x", "loss": []}\n'),
        ("metrics.jsonl", "not json}\n"),
        ("evals.jsonl", '{"step": 1, "accuracy": 7}\n'),
        ("events.jsonl", '{"event": "alarm"}\n'),
        ("summary.json", '{"co": 3}'),
        ("summary.json", "{"),
        ("summary.json", '{"attacks": {}, "accuracy": {}, "co": {}}'),
        ("config.yaml", "threat: 3\norigins: 4\n"),
        ("evaluation.json", "[1]"),
        ("probes/eps-curve.json", '{"fgsm": 3}'),
        ("probes/samples.json", '{"samples": [{"clean": 1}]}'),
    ],
)
def test_a_damaged_file_hides_only_its_own_part_of_the_page(file: str, content: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", probes=True)
    (run.path / file).write_text(content)
    other = write_run(tmp_path / "b", "sora")
    page, plots = read([run.path, other.path], tmp_path / "page.html")
    assert "Not shown" in page.text or file == "events.jsonl"
    assert "training loss" in names_of(plots)
    assert "It is robust" in page.text


@pytest.mark.slow
def test_fifty_long_runs_fit_into_the_page(tmp_path: Path) -> None:
    first = write_run(tmp_path / "runs" / "sora-0", "sora", steps=1000, probes=True)
    for seed in range(1, 50):
        folder = tmp_path / "runs" / f"sora-{seed}"
        folder.mkdir()
        for file in first.path.rglob("*.*"):
            copy = folder / file.relative_to(first.path)
            copy.parent.mkdir(exist_ok=True)
            text = file.read_text()
            text = text.replace('"blake2b"', '"checksum"').replace("blake2b:", "#")  # of another seed
            copy.write_text(text.replace('"seed": 0', f'"seed": {seed}').replace("seed: 0", f"seed: {seed}"))
    page, _ = read([tmp_path / "runs"], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 6_000_000
    assert page.count("details", **{"class": "run"}) == 50


def test_runs_of_one_name_are_told_apart_and_a_wrong_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no run in"):
        write_page([tmp_path], tmp_path / "page.html")
    with pytest.raises(UserError, match="there is no folder"):
        write_page([tmp_path / "none"], tmp_path / "page.html")
    with pytest.raises(UserError, match=r"must end in \.html"):
        write_page([tmp_path], tmp_path / "page.pdf")
    for parent in ("first", "second"):
        write_run(tmp_path / parent / "fgsm-s0")
    text = read([tmp_path], tmp_path / "page.html")[0].text
    assert re.search(r"first-fgsm-s0\s", text)
    assert re.search(r"second-fgsm-s0\s", text)


HALF = {"clean": 0.9, "fgsm": 0.6, "pgd10": 0.31}
LESS = {"clean": 0.9, "fgsm": 0.6, "pgd10": 0.25}
CHANCE = {"clean": 0.9, "fgsm": 0.1, "pgd10": 0.1}


@pytest.mark.parametrize(
    ("accuracy", "word", "rule"),
    [
        (HALF, "robust", "under PGD-10 it keeps at least half of its FGSM accuracy"),
        (LESS, "suspect", "PGD-10 leaves less than half of its FGSM accuracy, or a masking test failed"),
        (CHANCE, "not robust", "without an attack or under PGD-10 it is no better than chance"),
    ],
)
def test_a_verdict_is_explained_by_its_rule(accuracy, word, rule, tmp_path) -> None:
    assert verdict(accuracy, 1000, chance=0.1) == word
    run = write_run(tmp_path / "a", "sora")
    summary = run.read_summary()
    run.write_summary(summary | {"accuracy": accuracy, "co": {**summary["co"], "verdict": word}})
    [record] = read_runs([run.path])
    assert rule in words.verdict(record).text
