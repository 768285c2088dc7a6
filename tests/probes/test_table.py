"""What holds for every probe: one row here for each."""

import copy
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from sora import data, probes
from sora.errors import UserError
from sora.probes import ProbedModel
from sora.probes._records import read_runs, settings_of

from .toys import THREAT, images, logged_run, smooth, write_run

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "probes.md").read_text(encoding="utf-8")
READS = {"model": "model", "logs": "logs", "comparison": "finished runs", "data": "data sets"}


class Row(NamedTuple):
    name: str
    options: dict[str, Any]  # that make it quick
    keys: set[str]  # what a result has, at least
    sentence: str  # how the sentence begins


CURVE = {"threat", "n", "fgsm", "pgd10", "index"}
GRID = {"threat", "n", "axis"}
TABLE = [
    Row("eps-curve", {"batch_size": 5}, CURVE, "FGSM accuracy rises by"),
    Row("eps-overlay", {}, CURVE, "FGSM accuracy rises by"),
    Row("landscape", {"points": 5}, {*GRID, "loss", "way", "bump"}, "on the way from the images"),
    Row("boundary", {"points": 7, "panels": 2}, {*GRID, "fooled", "images"}, "6 of 12 images are"),
    Row("curvature", {}, {"threat", "n", "numbers", "lemma", "peak"}, "pertalign "),
    Row("samples", {}, {"threat", "n", "classes", "samples"}, "of 12 images"),
    Row("fallen", {"shown": 2}, {"threat", "n", "correct", "classes", "fallen"}, "1 of 6 correctly"),
    Row("training", {}, {"n", "pert_align", "accuracy", "alarms"}, "PertAlign 0.10 at"),
    Row("step-size", {}, {"threat", "cap", "steps", "values"}, "step size of 1 eps throughout"),
    Row("traces", {}, {"series", "events", "falls"}, "9 series; alarms at step 22"),
    Row("collapse", {}, {"series", "events", "falls"}, "9 series; alarms at step 22"),
    Row("overview", {}, {"attack", "robust", "clean"}, "highest accuracy under PGD-10: sora, 45.0 %"),
    Row("cost", {}, {"attack", "rows"}, "highest accuracy under PGD-10: sora, 45.0 %"),
    Row("classes", {}, {"classes", "counts"}, "10 classes of "),
]
MODEL_PROBES = [row for row in TABLE if probes.info(row.name).needs == "model"]


def subject(row: Row, folder: Path) -> Any:
    match probes.info(row.name).needs:
        case "model":
            return ProbedModel(smooth(), images(12), THREAT)
        case "logs":
            return logged_run(folder / "run")
        case "comparison":
            runs = [write_run(folder / method, method).path for method in ("fgsm", "sora")]
            [setting] = settings_of(read_runs(runs), [])
            return setting
        case "data":
            return data.load("digits")


def test_the_table_has_every_probe() -> None:
    assert [row.name for row in TABLE] == probes.names()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_measure_figure_and_sentence(row: Row, tmp_path: Path) -> None:
    probe = probes.create(row.name, **row.options)
    result = probe.measure(subject(row, tmp_path))
    assert row.keys <= result.keys()
    assert json.loads(json.dumps(result)) == result
    assert probe.sentence(result).startswith(row.sentence)
    assert "\n" not in probe.sentence(result)
    assert probe.figure({"one": result, "two": result}).panels


@pytest.mark.parametrize("row", MODEL_PROBES, ids=lambda row: row.name)
def test_a_probe_leaves_the_model_unchanged_repeats_itself_and_takes_double_precision(row: Row) -> None:
    model = smooth().train()
    before, stream = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    probe = probes.create(row.name, **row.options)
    first = probe.measure(ProbedModel(model, images(6), THREAT))
    assert torch.equal(stream, torch.get_rng_state())
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert probe.measure(ProbedModel(model, images(6), THREAT)) == first
    assert probe.measure(ProbedModel(model.double(), images(6), THREAT))["n"] == 6


@pytest.mark.parametrize("row", MODEL_PROBES, ids=lambda row: row.name)
def test_bad_images_and_labels_are_refused(row: Row) -> None:
    x, y = images(6)
    for wrong, message in (
        ((2 * x - 1, y), "outside the box"),
        (((x * 255).to(torch.uint8), y), "expected floats"),
        ((x, y + 1), "the model has 2 classes"),
    ):
        with pytest.raises(UserError, match=message):
            probes.create(row.name, **row.options).measure(ProbedModel(smooth(), wrong, THREAT))


class TestDocumentation:
    @pytest.mark.parametrize("name", probes.names())
    def test_a_probe_has_a_row_and_the_section_it_links_to(self, name: str) -> None:
        entry = probes.info(name)
        assert entry.summary
        [row] = re.findall(rf"^\| (?:\[`{name}`\]\(#{name}\)|`{name}`) \|.*$", PAGE, flags=re.MULTILINE)
        assert row.endswith(f"| {READS[entry.needs]} |")
        assert (f"\n## `{name}`\n" in PAGE) == row.startswith("| [")

    def test_the_default_of_limit_is_that_of_each_probe(self) -> None:
        [row] = re.findall(r"^\| `--limit N` \|.*$", PAGE, flags=re.MULTILINE)
        parts = re.findall(r"(\d+) for ((?:`[\w-]+`(?:, | and )?)+)", row)
        described = {name: int(count) for count, names in parts for name in re.findall(r"`([\w-]+)`", names)}
        assert described == {row.name: probes.info(row.name).images for row in MODEL_PROBES}

    def test_every_figure_of_the_paper_has_a_row_with_the_command_that_draws_it(self) -> None:
        page = (DOCS / "figures.md").read_text(encoding="utf-8")
        rows = re.findall(r"^\| ([\d, ]+) \|.*\| (.+) \|$", page, flags=re.MULTILINE)
        numbers = [int(number) for row, _ in rows for number in row.split(",")]
        assert sorted(numbers) == list(range(1, 17))
        described = {
            name: tuple(int(number) for number in numbers.split(","))
            for numbers, commands in rows
            for name in set(re.findall(r"`sora figure ([\w-]+)", commands))
        }
        drawn = {name: probes.info(name).figures for name in probes.names() if probes.info(name).figures}
        assert described == drawn
