"""Tables of the paper as runs: the protocol, scaling down, and the paper's numbers beside ours."""

from pathlib import Path

import pytest

from sora.errors import UserError
from sora.experiments import paper, reproduce
from sora.experiments.reproduce import gaps, scaled_down
from sora.experiments.tables import Cell
from sora.experiments.target import Target
from sora.runs import RunFolder

WITH_RUNS = [name for name in paper.names() if paper.load(name).kind in ("runs", "evaluation", "derived")]


@pytest.mark.parametrize("name", WITH_RUNS)
def test_every_table_has_runs_under_the_papers_protocol(name) -> None:
    grid = paper.load(name)
    runs = Target(grid, seeds=1).runs()
    assert len(runs) == len(grid.rows)
    assert len({run.settings.folder() for run in runs}) == len(runs)
    for resolved in runs:
        protocol = (resolved.settings.holdout, resolved.settings.eval_every)
        assert protocol == ((0, 0) if grid.source == "paper" else (None, 1))  # None: 1,000 of CIFAR-10
        assert list(resolved.settings.attacks) == list(grid.attacks)
        assert resolved.settings.dataset == grid.datasets[0]


def test_three_seeds_by_default() -> None:
    assert [run.settings.seed for run in Target(paper.load("l2")).runs()] == [0, 1, 2]


def test_runs_say_in_what_they_differ_and_rows_are_chosen_by_name_or_method(tmp_path: Path) -> None:
    scale = {"epochs": 3, "width": 16, "limit_train": 64, "limit_test": 50}
    target = Target(paper.load("main"), seeds=1, methods=("free", "sora"), scale=scale)
    settings = {run.settings.method: run.settings for run in target.runs()}
    assert settings["sora"].epochs == 3
    assert settings["free"].epochs == 1  # a third, as in the recipe: it replays each batch
    assert settings["sora"].batch_size == 64  # no more than there are images
    smaller = scaled_down(target, settings)
    assert smaller["width"] == (16, 64)  # the model's own
    assert smaller["limit_train"] == (64, None)
    assert smaller["batch_size"] == (64, 128)
    assert scaled_down(target, {run.settings.method: run.settings for run in target.full_runs()}) == {}
    config = tmp_path / "harder.yaml"
    config.write_text("eps: 12/255\naugment: []\nlr: 0.05\nholdout: 9\n")
    harder = Target(paper.load("main"), "pathmnist", seeds=1, methods=("sora",), config=str(config))
    [run] = harder.runs()
    assert run.settings.holdout == 0  # the paper's protocol stays
    assert scaled_down(harder, {"sora": run.settings}) == {
        "eps": ("12/255", "8/255"),
        "augment": ((), ("flip", "rotate:10")),
    }
    grid = paper.load("batch-size")
    assert [v.name for v in Target(grid, methods=("sora-b32",)).variants()] == ["sora-b32"]
    assert len(Target(grid, methods=("n-fgsm",)).variants()) == 5
    components = paper.load("components")  # the method of all rows is the name of one
    assert [v.name for v in Target(components, methods=("sora",)).variants()] == ["sora"]
    with pytest.raises(UserError, match="did you mean 'sora-b32'"):
        Target(grid, methods=("sora-b3",)).variants()


def test_the_model_is_one_of_the_papers_and_a_data_set_it_lacks_stands_beside_its_first() -> None:
    target = Target(paper.load("fastat"), dataset="tinyimagenet")  # on the other data sets it is ResNet-18
    assert target.model_name == "preactresnet18"
    assert len(paper.numbers(target.grid, *target.in_paper)) == 20
    assert Target(paper.load("fastat"), dataset="digits").model_name == "resnet18"
    target = Target(paper.load("components"), dataset="digits")
    assert target.in_paper == ("pathmnist", "preactresnet18")
    target = Target(paper.load("main"), dataset="imagenet100", model="senet18")  # each alone is in the paper
    assert target.in_paper == ("imagenet100", "senet18")
    assert paper.numbers(target.grid, *target.in_paper) == {}


def test_the_benchmark_has_its_own_protocol_and_gaps_are_of_the_same_seed() -> None:
    target = Target(paper.load("fastat"), seeds=1, methods=("liet", "pgd-10-last", "n-fgsm", "free"))
    settings = {run.settings.variant or run.settings.method: run.settings for run in target.runs()}
    assert {each.model for each in settings.values()} == {"resnet18"}
    assert {name: each.keep for name, each in settings.items()} == {
        **dict.fromkeys(("n-fgsm", "free", "liet"), "best-robust"),
        "pgd-10-last": "last",
    }
    assert (settings["pgd-10-last"].ema, settings["liet"].ema) == (None, 0.9995)
    assert (settings["liet"].smoothing, settings["n-fgsm"].smoothing) == (0.0, 0.4)
    assert (settings["free"].epochs, settings["free"].set["free.replays"]) == (50, 4)
    ours, sora = Cell((90.0, None, 80.0, 50.0)), Cell((70.0, 70.0, 75.0, None))
    found = gaps({"fgsm": {"clean": ours}, "sora": {"clean": sora}})
    assert found == {
        "fgsm": {"clean": ours, "clean-gap": Cell((20.0, None, 5.0, None))},
        "sora": {"clean": sora},
    }


def test_a_seed_that_is_missing_keeps_its_place(tmp_path, monkeypatch) -> None:
    target = Target(paper.load("main"), seeds=3, methods=("fgsm", "sora"), out=str(tmp_path))
    results = {"fgsm-s1": {"clean": 0.5}, "fgsm-s2": {"clean": 0.25, "aa": 0.125}}
    monkeypatch.setattr(RunFolder, "is_finished", lambda folder: folder.name in results)
    monkeypatch.setattr(RunFolder, "read_settings", lambda folder: None)
    monkeypatch.setattr(reproduce, "with_later_results", lambda folder: {"accuracy": results[folder.name]})
    found = reproduce.collect(target, target.runs()).cells
    expected = {"clean": Cell((None, 50.0, 25.0)), "aa": Cell((None, None, 12.5))}
    assert found == {"fgsm": expected, "sora": {}}
