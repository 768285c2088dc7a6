"""The package data against the paper's source, where that is beside the checkout or named by SORA_PAPER."""

import csv
import os
from importlib import resources
from pathlib import Path

import pytest

from sora.experiments import paper
from tests.experiments.paper import tex

SOURCE = Path(os.environ.get("SORA_PAPER", Path(__file__).parents[4] / "shared/paper/sora.tex"))
RESULTS = SOURCE.with_name("results.csv")
BENCHMARK = SOURCE.with_name("fastat.csv")


def shipped(name: str = "numbers.csv") -> list[tex.Record]:
    text = (resources.files("sora.experiments.paper") / name).read_text(encoding="utf-8")
    return [tex.Record(**line) for line in csv.DictReader(text.splitlines())]


@pytest.mark.skipif(not SOURCE.is_file(), reason="the paper's source is not here; set SORA_PAPER")
def test_every_value_of_the_paper_is_shipped_and_every_shipped_value_is_in_the_paper() -> None:
    printed = list(tex.records(SOURCE.read_text(encoding="utf-8")))
    assert len(set(printed)) == len(printed)
    assert set(printed) - set(shipped()) == set()
    assert set(shipped()) - set(printed) == set()
    assert shipped() == printed


@pytest.mark.skipif(not SOURCE.is_file(), reason="the paper's source is not here; set SORA_PAPER")
def test_no_table_of_the_paper_is_left_out() -> None:
    grids = [paper.load(name) for name in paper.names()]
    labels = {label for grid in grids if grid.source == "paper" for label in grid.labels}
    assert set(tex.tables(SOURCE.read_text(encoding="utf-8"))) == labels


@pytest.mark.skipif(
    not RESULTS.is_file(), reason="the main results as a CSV file are not here; set SORA_PAPER"
)
def test_the_main_tables_agree_with_a_second_extraction() -> None:
    grid = paper.load("main")
    models = {
        name.lower().replace("-18", "18").replace("-28", "28"): ours for name, ours in tex.MODELS.items()
    }
    lines = list(csv.DictReader(RESULTS.read_text(encoding="utf-8").splitlines()))
    for line in lines:
        table = paper.numbers(grid, line["dataset"], models[line["architecture"]])
        value = table[tex.METHODS[line["method"]]][line["metric"]]
        assert value[:2] == (float(line["mean"]), float(line["std"]) if line["std"] else None), line
    assert len(lines) == sum(
        len(row) for pair in paper.pairs(grid) for row in paper.numbers(grid, *pair).values()
    )


@pytest.mark.skipif(
    not BENCHMARK.is_file(),
    reason="the benchmark's values are not here; set SORA_PAPER to a file beside them",
)
def test_every_value_of_the_benchmark_is_shipped_and_no_other() -> None:
    names = tex.NAMES["benchmark"]
    printed = {
        (names[line["method"]], line["dataset"], line["model"], line["metric"]): line["value"]
        for line in csv.DictReader(BENCHMARK.read_text(encoding="utf-8").splitlines())
    }
    ours = {}
    for line in shipped("fastat.csv"):
        for metric, value in ((line.metric, line.mean), (f"{line.metric}_std", line.std)):
            ours[line.variant, line.dataset, line.model, metric] = value
    assert len(ours) == 2 * len(shipped("fastat.csv")) == 992
    assert ours == printed


def test_the_reader_refuses_a_cell_that_is_no_value() -> None:
    table = (
        r"\begin{table}\caption{Results for \textsc{CIFAR-10} on the ResNet-18 architecture.}\label{tab:x}"
        r"\begin{tabular}{cc}\toprule \textbf{Method} && \textbf{Clean} \\ \midrule FGSM && %s \\"
        r"\end{tabular}\end{table}"
    )
    (record,) = tex.records(table % r"$85.21 \pm 0.49$")
    assert record == ("tab:x", "cifar10", "resnet18", "fgsm", "clean", "85.21", "0.49")
    with pytest.raises(ValueError, match="not a value: '--'"):
        list(tex.records(table % "--"))
