"""Every row of every grid is a run that can be started, and belongs to a table of the paper."""

from pathlib import Path

import pytest

from sora.errors import UserError
from sora.experiments import paper
from sora.experiments.target import Target
from sora.settings import Resolved

GRIDS = paper.names()


def resolved(grid: paper.Grid, row: str, dataset: str | None = None, model: str | None = None) -> Resolved:
    attacks = grid.attacks or ("clean",)  # nothing is attacked in the table of costs
    [run] = Target(grid, dataset, model, seeds=1, methods=(row,), attacks=attacks).full_runs()
    return run


@pytest.mark.parametrize("name", [name for name in GRIDS if name != "datasets"])  # it trains nothing
def test_every_row_resolves_on_the_data_sets_of_the_paper(name: str) -> None:
    grid = paper.load(name)
    for dataset, model in paper.pairs(grid):
        all_rows = list(grid.rows.values())
        rows = all_rows if model == paper.pairs(grid)[0][1] else all_rows[-1:]  # the model changes little
        for row in rows:
            settings = resolved(grid, row.name, dataset, model).settings
            assert settings.method == row.method
            assert not dataset or (settings.dataset, settings.model) == (dataset, model)
            for key, value in {**grid.settings, **row.values}.items():
                if key == "set":
                    assert value.items() <= settings.set.items()
                else:
                    assert getattr(settings, key) == value


@pytest.mark.parametrize("name", [name for name in GRIDS if paper.load(name).kind == "runs"])
def test_every_row_resolves_on_the_bundled_digits(name: str) -> None:
    grid = paper.load(name)
    runs = [resolved(grid, row, "digits").settings for row in grid.rows]
    assert {run.dataset for run in runs} == {"digits"}
    assert len({str(run.flat()) for run in runs}) == len(runs), "two rows are the same run"


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_has_a_row_for_every_value_and_a_value_for_every_row(name: str) -> None:
    grid = paper.load(name)
    rows: list[str] = []
    for dataset, model in paper.pairs(grid):
        table = paper.numbers(grid, dataset, model)
        rows += table
        assert not dataset or (dataset in grid.datasets and model in grid.models)
        if grid.kind == "evaluation":
            assert set(table["sora"]) == {f"{a}@{radius}" for a in grid.attacks for radius in grid.radii}
    ours_alone = {"sora", "tdat", "fgsm-law", "fgsm-lass"} if grid.source == "benchmark" else set()
    assert set(rows) == set(grid.rows) - ours_alone


def test_the_grids_have_the_papers_tables_and_ablations_change_one_switch_each() -> None:
    grids = [paper.load(name) for name in GRIDS]
    assert {grid.source for grid in grids} == {"paper", "benchmark"}
    labels = [label for grid in grids if grid.source == "paper" for label in grid.labels]
    assert len(set(labels)) == 42
    assert len(labels) == 43  # the headline table is in main, for ImageNet-100, and in gap
    grid = paper.load("components")
    assert [row.values.get("set", {}) for row in grid.rows.values()] == [
        {},
        {"sora.sample": False},
        {"sora.clip_ball": True},
        {"sora.adaptive": False},
    ]


def test_settings_reach_the_run_and_an_unknown_name_is_answered_with_the_nearest() -> None:
    l2 = resolved(paper.load("l2"), "sora", model="senet18").settings
    assert (l2.norm, l2.eps, l2.model, l2.dataset) == ("l2", "0.5", "senet18", "cifar10")
    row = resolved(paper.load("training-eps"), "sora-eps12").settings
    assert (row.method, row.eps, row.dataset, row.epochs) == ("sora", "12/255", "cifar10", 30)
    with pytest.raises(UserError, match="unknown table 'component'; did you mean 'components'"):
        paper.load("component")
    with pytest.raises(UserError, match="did you mean 'no-sampling'"):
        Target(paper.load("components"), methods=("no-sample",)).variants()


def test_the_documentation_lists_every_grid_and_the_tables_it_has() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    lines = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert sorted(lines) == GRIDS
    for name in GRIDS:
        if name != "main":  # whose twenty tables share a line
            assert all(f"`{label}`" in lines[name] for label in paper.load(name).labels)
