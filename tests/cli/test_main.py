"""The dispatcher, `list` and `show`."""

import importlib
import os

import pytest

from sora import __version__, data, methods, models
from sora.cli import VERBS
from sora.settings import recipes


def test_the_help_names_every_verb_and_the_version_is_the_packages(sora) -> None:
    shown = sora("--help").out
    assert all(verb in shown for verb in VERBS)
    assert sora("--version").out.strip() == f"sora {__version__}"


@pytest.mark.parametrize("kind", ["methods", "models", "data", "attacks", "metrics", "probes", "recipes"])
def test_lists_have_every_name_and_describe_it(kind, sora) -> None:
    rows = [list(row.values()) for row in sora.json("list", kind)]  # without the legend
    registry = recipes if kind == "recipes" else importlib.import_module(f"sora.{kind}")
    assert [row[0] for row in rows] == list(registry.names())
    assert all(len(row) > 1 and (kind == "recipes" or len(row[1]) > 5) for row in rows)


@pytest.mark.parametrize("name", [*methods.names(), *(name for name in models.names() if ":" not in name)])
def test_show_every_method_and_model(name, sora) -> None:
    assert sora.json("show", name)["name"] == name


@pytest.mark.parametrize("name", recipes.names())
def test_show_every_recipe(name, sora) -> None:
    assert ("model: " if name != "finetune" else "lr: ") in sora("show", "recipe", name).out


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("attack fgsm", "attack"),  # which share their names with a method
        ("metric elle", "metric"),
        ("probe traces", "probe"),
        ("pgd10", "attack"),
        ("aae", "metric"),
        ("eps-curve", "probe"),
    ],
)
def test_show_attacks_metrics_and_probes(words, kind, sora) -> None:
    shown = sora.json("show", *words.split())
    assert len(shown[kind]) > 10
    assert words.split()[-1] in shown["use"]


@pytest.mark.parametrize("name", [name for name in data.names() if ":" not in name])
def test_show_every_data_set(name, sora, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SORA_DATA", str(tmp_path))
    shown = sora.json("show", name)
    assert shown["name"] == name
    assert shown["normalisation"]["mean"] == recipes.flattened(name)["mean"]
    if name == "digits":
        assert shown["where"] == "built in"
        return
    known = data.info(name)
    assert shown["images"] == known.counts
    assert shown["where"] == "not here"
    assert shown["from"] == [file.url for file in known.packed.files] or name == "imagenet100"
    assert any(f"sora data get {name} --from" in way for way in shown["get"])
    words = sora("show", name)
    assert words.err == ""
    assert f"name: {name}\n" in words.out


@pytest.mark.parametrize(
    ("verb", "usage"),
    [
        ("compare", "[OPTIONS] [RUN ...]"),
        ("predict", "[OPTIONS] RUN IMAGE [IMAGE ...]"),
        ("probe", "[OPTIONS] NAME [RUN ...]"),
        ("report", "[-h] RUN [RUN ...] [--out TEXT]"),
        ("figure", "[OPTIONS] NAME [RUN ...]"),
        ("data show", "[OPTIONS] [NAME]"),
        ("reproduce", "[OPTIONS] [TABLE]"),
    ],
)
def test_usage_shows_what_may_be_repeated_or_left_out(verb, usage, sora) -> None:
    assert usage in sora(*verb.split(), "--help").out.splitlines()[0]


def test_help_describes_a_verb_in_one_paragraph_and_names_the_default_folder_of_a_comparison(sora) -> None:
    for verb in ("report", "reproduce"):
        about = sora(verb, "--help").out.split("\n\n")[1]
        assert about.endswith("--debug shows where an error happened.")
        assert "  " not in about
    text = sora("compare", "--help").out
    assert "folder of the runs; default: runs/compare" in text
    assert "runs/DATASET-METHOD" not in text


@pytest.mark.slow
def test_cost_table_counts_the_passes_for_programs_and_people(sora) -> None:
    rows = {row["name"]: row for row in sora.json("list", "methods", "--cost")}
    assert (rows["sora"]["forwards"], rows["pgd-10"]["forwards"], rows["free"]["forwards"]) == (2, 11, 8)
    assert rows["fgsm"]["relative_time"] == 1
    assert "time / FGSM" in sora("list", "methods", "--cost").out


@pytest.mark.parametrize(("given", "used"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_leave_the_processor_to_others_unless_asked(given, used, monkeypatch, sora) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    sora("--version")
    assert os.environ["OMP_WAIT_POLICY"] == used


def test_the_list_of_methods_explains_its_columns_and_order(sora) -> None:
    head, _, rest = sora("list", "methods").out.partition("\n")
    table, _, legend = rest.partition("\ncost: ")
    assert head.split() == ["method", "cost", "memory", "norms", "PertAlign", "what", "it", "does"]
    assert all(f"\n{column}: " in f"\ncost: {legend}" for column in head.split()[1:5])
    listed = [line.split()[0] for line in table.splitlines() if line.split()[:1] and "  " in line]
    assert sorted(listed) == sorted(methods.names())
    headings = [line.partition(": ") for line in table.splitlines() if ": " in line]
    assert {group: text for group, _, text in headings} == methods.GROUPS


def test_the_list_of_methods_fits_a_terminal(sora, monkeypatch) -> None:
    for columns in (80, 100):
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(columns))
        table = sora("list", "methods").out.partition("\ncost: ")[0]
        assert max(len(line) for line in table.splitlines()) <= columns
        assert "\nsora         2     -" in table
        assert "\n    one step, its size set by the curvature of the last batches\n" in table
