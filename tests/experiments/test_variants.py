"""Rows of grids: from text, from files, and as settings of runs."""

import csv
from pathlib import Path

import pytest

from sora.errors import UserError
from sora.experiments import compare as comparing
from sora.experiments.compare import compare_summaries, protocol, row_name, table, write
from sora.experiments.tables import Cell
from sora.experiments.variants import Variant, of_methods, parse_variant, plan, read_grid
from sora.runs import RunFolder
from sora.settings import Request


def test_a_variant_from_text() -> None:
    variant = parse_variant(
        "small: sora sora.beta=0.1 model.stages=1 batch-size=64 eps=4/255 augment=crop:4,flip"
    )
    assert (variant.name, variant.method, variant.slug) == ("small", "sora", "small")
    assert variant.values["set"] == {"sora.beta": 0.1, "model.stages": 1}
    assert variant.values["batch_size"] == 64
    assert variant.values["eps"] == "4/255"


def test_every_variant_has_every_seed_in_a_folder_and_wins_over_what_is_common() -> None:
    variants = [parse_variant("1.5 x: sora sora.alpha_max=1.5"), *of_methods("fgsm")]
    runs = plan(Request({"dataset": "digits", "batch_size": 32}), variants, 2, Path("out"))
    names = [resolved.settings.folder().name for resolved in runs]
    assert names == ["1-5-x-s0", "1-5-x-s1", "fgsm-s0", "fgsm-s1"]
    assert [resolved.settings.variant for resolved in runs] == ["1.5 x", "1.5 x", None, None]
    assert runs[0].origins["set.sora.alpha_max"] == "variant 1.5 x"
    assert runs[0].origins["batch_size"] == "flag"
    variants = [Variant("a", {"method": "sora", "batch_size": 16, "set": {"sora.beta": 0.3}})]
    request = Request({"batch_size": 64, "set": {"sora.beta": 0.1, "sora.alpha0": 0.05}})
    (resolved,) = plan(request, variants, 1, Path("out"))
    assert resolved.settings.batch_size == 16
    assert resolved.settings.set["sora.beta"] == 0.3
    assert resolved.settings.set["sora.alpha0"] == 0.05


def test_a_grid_file_has_the_shape_of_the_papers_grids(tmp_path) -> None:
    from importlib import resources

    text = (resources.files("sora.experiments.paper") / "grids" / "components.yaml").read_text()
    (tmp_path / "g.yaml").write_text(text)
    settings, variants = read_grid(str(tmp_path / "g.yaml"), {})
    assert settings["dataset"] == "pathmnist"
    assert [variant.name for variant in variants][:2] == ["sora", "no-sampling"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rows: 3", "has no rows"),
        ("[1]", "has no rows"),
        ("rows: {a: {}}\nother: 1", "unknown key"),
        ("rows: {a: {}}\nsettings: {out: x}", "sets out; name it on the command line"),
        ("settings: {set: 3}\nrows: {a: {}}", "set is 3; expected a table"),
        ("rows: {a: {set: 3}}", "set is 3; expected a table"),
    ],
)
def test_mistakes_in_a_file_are_one_line(text, message, tmp_path) -> None:
    (tmp_path / "g.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        read_grid(str(tmp_path / "g.yaml"), {})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("in_file", [True, False])
def test_a_common_method_is_that_of_rows_without_one_and_a_common_variant_names_none(
    in_file: bool, tmp_path
) -> None:
    (tmp_path / "c.yaml").write_text("method: fgsm\nvariant: mine\n")
    given = {"method": "fgsm", "variant": "mine"}
    request = Request(config=str(tmp_path / "c.yaml")) if in_file else Request(given)
    variants = [Variant("a"), Variant("b", {"method": "n-fgsm"}), *of_methods("fgsm,sora")]
    runs = [resolved.settings for resolved in plan(request, variants, 1, Path("out"))]
    assert [run.method for run in runs] == ["fgsm", "n-fgsm", "fgsm", "sora"]
    assert [run.variant for run in runs] == ["a", "b", None, None]
    assert plan(Request(), variants, 1, Path("out"))[0].settings.method == "sora"


def test_flags_are_merged_with_the_options_of_a_grid_file(tmp_path) -> None:
    (tmp_path / "g.yaml").write_text("settings: {set: {sora.beta: 0.3, sora.alpha0: 0.05}}\nrows: {a: {}}\n")
    given, _ = read_grid(str(tmp_path / "g.yaml"), {"set": {"sora.beta": 0.1}})
    assert given["set"] == {"sora.beta": 0.1, "sora.alpha0": 0.05}


def test_the_data_folder_is_planned_as_stored_and_empty_options_are_none(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (resolved,) = plan(Request({"data_dir": "data"}), of_methods("fgsm"), 1, Path("out"))
    assert resolved.settings.data_dir == str(tmp_path.resolve() / "data")
    (tmp_path / "g.yaml").write_text("rows: {a: {set: }}")
    given, variants = read_grid(str(tmp_path / "g.yaml"), {})
    (resolved,) = plan(Request(given), variants, 1, Path("out"))
    assert resolved.settings.variant == "a"


def summary(**changes):
    """A summary as a run writes it."""
    attack = {"clean": {"n": 10}, "pgd10": {"n": 10}}
    base = {"method": "sora", "variant": None, "dataset": "digits", "model": "m", "seed": 0, "epochs": 1}
    base |= {"threat": {"norm": "linf", "eps": 8 / 255}, "attacks": attack, "versions": {"torch": "2"}}
    base |= {"accuracy": {"clean": 0.5, "pgd10": 0.25}, "train_seconds": 3.0, "images_per_second": 1.0}
    base |= {
        "peak_memory_mb": 100.0,
        "pert_align": {"last": 1.0},
        "co": {"verdict": None, "events": [], "guard": "warn"},
    }
    return base | {"machine": {"cpu": "x", "gpu": None, "threads": 1}} | changes


def compared(*summaries):
    """A comparison of runs whose settings are not known."""
    names = [row_name(each) for each in summaries]
    return compare_summaries(
        summaries, names, [RunFolder(f"none/{position}") for position in range(len(names))]
    )


def test_facts_that_differ_become_columns_and_leave_the_protocol() -> None:
    other = {"norm": "l2", "eps": 0.5}
    comparison = compared(summary(), summary(variant="b", threat=other, dataset="cifar10"))
    head, rows = table(comparison)
    assert head[:3] == ["variant", "dataset", "eps"]
    assert [row[:3] for row in rows] == [["sora", "digits", "8/255"], ["b", "cifar10", "l2 0.5"]]
    assert head[-2:] == ["train s", "peak MB"]
    line = protocol(comparison)
    assert "digits" not in line
    assert "eps" not in line
    assert "n = 10 test images" in line


def test_rows_of_two_comparisons_whose_names_have_a_number_stay_apart(tmp_path, monkeypatch) -> None:
    keys = [("run #1", "a", ""), ("run #1", "b", ""), ("run #1", "c", "")]
    folders = [RunFolder(tmp_path / str(number) / "c" / name) for number in range(3) for name in "ab"]
    monkeypatch.setattr(comparing, "variant_key", lambda folder, _: keys[int(folder.path.parts[-3])])
    summaries = [summary(seed=seed) for _ in range(3) for seed in range(2)]
    names = comparing.row_names(folders, summaries)
    assert names[::2] == ["c (run #1)", "c (run #1) #2", "c (run #1) #3"]


def test_values_of_every_seed_are_kept() -> None:
    accuracies = [{"clean": 0.5}, {"clean": 0.7, "aa": 0.1}]
    runs = [summary(seed=seed, accuracy=accuracy) for seed, accuracy in enumerate(accuracies)]
    entry = compared(*runs)["methods"]["sora"]
    assert entry["accuracy"]["clean"]["values"] == [0.5, 0.7]
    assert entry["accuracy"]["aa"]["values"] == [None, 0.1]
    assert Cell((1.0, None, 3.0)).summary()["mean"] == 2.0


def test_a_mean_over_some_seeds_says_so_and_the_line_below_names_what_all_runs_share(tmp_path) -> None:
    accuracies = [{"clean": 0.5}, {"clean": 0.7, "aa": 0.2}]
    comparison = compared(*(summary(seed=seed, accuracy=own) for seed, own in enumerate(accuracies)))
    head, [row] = table(comparison)
    cells = dict(zip(head, row, strict=True))
    assert (cells["clean %"], cells["aa %"]) == ("60.0 ± 14.1", "20.0 (1 of 2 seeds)")
    write(comparison, tmp_path)
    [line] = csv.DictReader((tmp_path / "comparison.csv").open())
    assert (line["clean_seeds"], line["aa_seeds"], line["seeds"]) == ("2", "1", "0 1")
    other = {"versions": {"torch": "3"}, "machine": {"cpu": "y", "gpu": None, "threads": 1}}
    assert protocol(compared(summary(), summary(seed=1))).endswith("; torch 2, x, 1 thread.")
    assert protocol(compared(summary(), summary(seed=1, machine=other["machine"]))).endswith("; torch 2.")
    assert protocol(compared(summary(), summary(seed=1, **other))).endswith(
        "(mean ± sample standard deviation)."
    )
