"""Ours beside the paper's, from made-up values."""

import csv
import dataclasses
import io
import statistics

import pytest

from sora.experiments import paper
from sora.experiments.beside_paper import (
    Table,
    correlation,
    csv_lines,
    fallen,
    footer,
    grid_of,
    latex,
    markdown,
    title_of,
)
from sora.experiments.paper import Value
from sora.experiments.tables import Cell

MISSING = "not in the paper"
GRID = dataclasses.replace(paper.load("components"), name="t", title="A & B", notes=("a note",))


def value(mean: float, std: float | None = None) -> Value:
    return Value(mean, std, "tab:x", f"{mean:.2f}")


def made_up(*, comparable: bool = True, **changes) -> Table:
    fgsm = [Cell((90.0,), value(88.0)), Cell((80.0,), value(70.0)), Cell((1.0,), value(0.0)), Cell()]
    sora = [
        Cell((70.0, 80.0), value(74.5, 0.5)),
        Cell((50.0, 52.0), value(50.0)),
        Cell((44.0, 46.0), value(44.0)),
        Cell(),
    ]
    rows = {"fgsm": fgsm, "sora": sora, "elle": [Cell()] * 4}
    metrics = ("clean", "fgsm", "pgd10", "aa")
    cells = {row: dict(zip(metrics, own, strict=True)) for row, own in rows.items()}
    return Table(dataclasses.replace(GRID, **changes), cells, ("ours: digits",), comparable)


def test_a_cell_has_both_deviations_and_shows_the_kind_that_theirs_is() -> None:
    cell = Cell((70.0, 80.0), value(74.5, 0.5))
    assert cell.population_std == pytest.approx(5.0)
    assert cell.sample_std == pytest.approx(statistics.stdev([70.0, 80.0]))
    assert (cell.ours("population"), cell.theirs(), cell.difference) == ("75.00 ± 5.00", "74.50 ± 0.50", 0.5)
    assert (Cell((70.0,)).ours(), Cell().ours(), Cell().theirs()) == ("70.00", "-", MISSING)
    table = made_up(source="benchmark", deviation="sample")
    _, lines = grid_of(table)
    assert ["sora", "ours", "75.00 ± 7.07", "51.00 ± 1.41", "45.00 ± 1.41", "-"] in lines
    assert ["", "benchmark", *["not in the benchmark"] * 4] in lines
    text = " ".join(footer(table))
    assert "± is the sample deviation over the seeds, as in the benchmark;" in text
    assert "in the benchmark: fgsm" in text
    assert "paper" not in text


def test_differences_are_of_equal_experiments_and_orders_are_compared_by_rank() -> None:
    _, lines = grid_of(made_up())
    assert ["", "diff.", "+0.50", "+1.00", "+1.00", ""] in lines
    assert ["", "paper", MISSING, MISSING, MISSING, MISSING] in lines
    other = made_up(comparable=False)
    assert all(line[1] != "diff." for line in grid_of(other)[1])
    assert other.record()["rows"]["sora"]["clean"]["difference"] is None
    assert made_up().record()["rows"]["sora"]["clean"]["difference"] == 0.5
    assert correlation([(1, 10), (2, 20), (3, 15)]) == {
        "spearman": pytest.approx(0.5),
        "kendall": pytest.approx(1 / 3),
        "n": 3,
    }
    assert correlation([(1, 2), (1, 3)])["spearman"] is None
    assert correlation([(1, 2)])["n"] == 1
    assert made_up().order()["clean"]["spearman"] == pytest.approx(1.0)


def test_collapsed_rows_are_named_by_the_same_rule_for_both_with_the_count_of_seeds() -> None:
    collapsed = made_up().collapsed()
    assert (collapsed["ours"], collapsed["paper"]) == (["fgsm"], ["fgsm"])
    assert (collapsed["ours_seeds"], collapsed["rows"]) == ({"fgsm": [1, 1]}, ["fgsm", "sora"])
    assert fallen({"a": {"pgd10": 40.0}, "b": {"pgd10": 5.0}, "benign": {"pgd10": 0.0}}) == ["b"]
    assert fallen({}) == []
    cells = {"fgsm": Cell((80.0, 50.0), value(70.0)), "pgd10": Cell((1.0, 40.0), value(30.0))}
    assert "in ours: fgsm (1 of 2 seeds); in the paper: none" in " ".join(
        footer(Table(GRID, {"fgsm": cells}))
    )


def test_seeds_are_paired_also_where_one_is_missing() -> None:
    fgsm = {"fgsm": Cell((None, 50.0), value(70.0)), "pgd10": Cell((20.0, 40.0), value(30.0))}
    sora = {"fgsm": Cell((), value(70.0)), "pgd10": Cell((None, 90.0), value(30.0))}
    table = Table(GRID, {"fgsm": fgsm, "sora": sora})
    assert table.collapsed()["ours"] == []  # 20 is the best of its seed; 90 and 50 belong to the other
    cell = sora["pgd10"]
    assert (cell.mean, cell.ours()) == (90.0, "90.00 (1 of 2 seeds)")
    assert cell.record(comparable=False)["ours"]["values"] == [None, 90.0]
    line = next(line for line in csv.DictReader(io.StringIO(csv_lines(table))) if line["row"] == "sora")
    assert {line["metric"]: line["seeds"]} == {"fgsm": "0"}


def test_all_formats_hold_every_cell_under_the_heads_of_columns() -> None:
    table = made_up()
    lines = list(csv.DictReader(io.StringIO(csv_lines(table))))
    assert len(lines) == 12
    sora = next(line for line in lines if (line["row"], line["metric"]) == ("sora", "clean"))
    assert (sora["ours"], sora["ours_population_std"], sora["paper"]) == ("75.0", "5.0", "74.50")
    assert next(line for line in lines if line["row"] == "elle")["paper"] == MISSING
    assert "| sora | ours | 75.00 ± 5.00 |" in markdown(table)
    assert r"\caption{A \& B}" in latex(table)
    assert r"75.00 $\pm$ 5.00" in latex(table)
    text = " ".join(footer(table))
    assert "Spearman +1.00, Kendall +1.00 (n = 2)" in text
    assert "in ours: fgsm; in the paper: fgsm" in text
    assert "population deviation" in text
    assert "note: a note" in text
    heads = [title_of(metric) for metric in ("pgd10", "fgsm@3/255", "aa-gap", "memory")]
    assert heads == ["PGD-10", "FGSM at 3/255", "AA, gap", "memory"]
