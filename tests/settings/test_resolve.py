"""Where settings come from: the order of the layers, and the origin of every value."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from sora.errors import UserError
from sora.settings import Request, Resolved, differences


def resolve(config: Path | None = None, recipe: str | None = None, **given: Any) -> Resolved:
    return Request(given, config=None if config is None else str(config), recipe=recipe).resolve()


@pytest.fixture
def file(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "settings.yaml"
        path.write_text(text)
        return path

    return write


def test_flags_win_over_file_over_recipe_over_default_also_with_an_equal_value(file) -> None:
    resolved = resolve(file("epochs: 5\nlr: 0.1\n"), dataset="digits", lr=0.3)
    settings = resolved.settings
    assert (settings.lr, settings.epochs, settings.eps, settings.momentum) == (0.3, 5, "0.15", 0.9)
    origins = [resolved.origins.get(name, "default") for name in ("lr", "epochs", "eps", "momentum")]
    assert origins[0] == "flag"
    assert origins[1].endswith("settings.yaml")
    assert origins[2:] == ["recipe digits", "default"]
    assert resolve(dataset="digits", method="free").settings.epochs == 7
    resolved = resolve(dataset="digits", method="free", epochs=30)
    assert resolved.settings.epochs == 30
    assert resolved.origins["epochs"] == "flag"


def test_grouped_and_flat_files_are_the_same_and_parts_for_one_method_stay_there(file) -> None:
    path = file("epochs: 9\nmethods:\n  free: {epochs: 4}\nset: {fgsm.alpha: 1.5, sora.beta: 0.1}\n")
    assert resolve(path, method="free").settings.epochs == 4
    sora = resolve(path, method="sora")
    assert sora.settings.epochs == 9
    assert sora.settings.set["sora.beta"] == 0.1
    assert not [key for key in sora.settings.set if key.startswith("fgsm")]
    assert sora.origins["set.sora.beta"].endswith("settings.yaml")
    flat = resolve(file("epochs: 3\neps: '0.1'\n")).settings
    grouped = resolve(file("optimisation: {epochs: 3}\nthreat:\n  eps: '0.1'\n")).settings
    assert flat == grouped
    settings = resolve(file("lr: 1e-3\nlr_min: 1e-5\nset: {sora.alpha0: 2e-2}\n")).settings
    assert settings.lr == 0.001
    assert settings.set["sora.alpha0"] == 0.02


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 3\n", "did you mean 'epochs'"),
        ("optimisation: {epoch: 3}\n", "did you mean 'epochs'"),
        ("data: {epochs: 3}\n", "unknown key under data"),
        ("[1, 2", "is not YAML"),
        ("just text", "is not a table of settings"),
        ("- a\n- b", "is not a table of settings"),
        ("", "is not a table of settings"),
        ("methods: 3\n", "not a table of settings per method"),
        ("set: 3\n", "expected a table"),
    ],
)
def test_mistakes_in_a_file_are_one_line(text: str, message: str, file) -> None:
    with pytest.raises(UserError) as caught:
        resolve(file(text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_network_or_norm_has_its_own_recipe_and_another_norm_needs_a_radius() -> None:
    own = resolve(dataset="digits").settings
    other = resolve(dataset="digits", model="resnet18").settings
    assert (own.width, own.set["model.stages"]) == (16, 2)
    assert other.width is None
    assert "model.stages" not in other.set
    assert other.mean == own.mean
    resolved = resolve(dataset="cifar10", model="vit-small")
    assert resolved.recipes == ("cifar10", "cifar10-vit")
    settings = resolved.settings
    assert (settings.optimizer, settings.lr, settings.weight_decay) == ("sgd", 0.2, 5e-4)  # the paper's
    assert resolve(dataset="tissuemnist", model="vit-small").recipes[-1] == "tissuemnist"
    resolved = resolve(dataset="cifar10", norm="l2")
    assert (resolved.settings.eps, resolved.origins["eps"]) == ("0.5", "recipe cifar10-l2")
    with pytest.raises(UserError, match=r"eps 8/255 \(recipe .*\) is meant for linf; pass --eps for l2"):
        resolve(dataset="tinyimagenet", norm="l2")
    assert resolve(dataset="tinyimagenet", norm="l2", eps="0.5").settings.eps == "0.5"


def test_a_recipe_can_be_named(file) -> None:
    assert resolve(dataset="cifar10", recipe="cifar10-l2").settings.norm == "l2"
    ours = resolve(dataset="pathmnist", recipe="vit-adamw")
    assert (ours.settings.optimizer, ours.settings.model) == ("adamw", "vit-small")
    assert ours.settings.augment == ("flip", "rotate:10")  # still the data set's
    assert resolve(file("recipe: cifar10-l2\n"), dataset="cifar10").settings.norm == "l2"
    with pytest.raises(UserError, match="unknown recipe 'cifar11'; did you mean 'cifar10'"):
        resolve(recipe="cifar11")


@pytest.mark.parametrize(
    ("method", "key", "family"),
    [("sora", "n-fgsm.q", "n-fgsm"), ("fgsm", "alpha", "fgsm"), ("pgd-2", "speed.x", "pgd")],
)
def test_an_unknown_option_lists_the_keys_of_its_method_alone(method: str, key: str, family: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(method=method, set={key: 1})
    listed = str(caught.value).partition("allowed: ")[2].split(", ")
    assert listed
    assert {name.partition(".")[0] for name in listed} == {family}


def test_stored_settings_resolve_to_themselves_and_changes_are_named() -> None:
    first = resolve(dataset="cifar10", method="n-fgsm", epochs=3, augment="flip", set={"n-fgsm.k": 1.5})
    stored = yaml.safe_load(first.stored())
    assert stored["format"] == 2
    assert stored["origins"]["epochs"] == "flag"
    again = Request({}).resolve(stored)
    assert again.settings == first.settings
    assert differences(stored, again.settings) == []
    stored = yaml.safe_load(resolve(dataset="digits").stored())
    changed = Request({"epochs": 9, "threads": 2}).resolve(stored).settings
    assert differences(stored, changed) == ["epochs 20 -> 9"]
    assert Request({}, recipe="digits").resolve(stored)
    with pytest.raises(UserError, match="--recipe cifar10: the stored run has digits"):
        Request({}, recipe="cifar10").resolve(stored)


def test_code_is_not_imported_because_a_file_names_it(file) -> None:
    path = file("model: os:system\nset: {model.command: 'echo hello'}\n")
    with pytest.raises(UserError, match="names the network 'os:system', which runs your own code"):
        resolve(path)
    stored = yaml.safe_load(resolve(model="torch.nn:Identity").stored())
    with pytest.raises(UserError, match=r"stored run names the network 'torch.nn:Identity'"):
        Request({}).resolve(stored)
    stored["origins"]["model"] = "flag"  # a claim in a file is no permission
    with pytest.raises(UserError, match="stored run names"):
        Request({}).resolve(stored)
    assert Request({"model": "torch.nn:Identity"}).resolve(stored).settings.model == "torch.nn:Identity"


def test_described_settings_are_yaml_with_origins_behind() -> None:
    resolved = resolve(dataset="cifar10", epochs=3)
    text = resolved.described()
    lines = {line.split(":")[0].strip(): line for line in text.splitlines() if "#" in line}
    assert lines["epochs"].endswith("# flag")
    assert lines["lr"].endswith("# recipe cifar10")
    assert lines["momentum"].endswith("# recipe cifar10")
    assert lines["precision"].endswith("# default")
    assert yaml.safe_load(text)["data"]["augment"] == ["crop:4", "flip"]


@pytest.mark.parametrize("schedule", ["cyclic", "cosine", "one-cycle"])
def test_a_smallest_rate_above_the_highest_is_an_error(schedule) -> None:
    given = {"dataset": "digits", "lr": 0.001, "schedule": schedule}
    with pytest.raises(UserError, match=r"lr_min 0.01 \(recipe digits\) is above lr 0.001; .*e.g. 5e-05"):
        Request(given).resolve()
    assert Request(given | {"lr_min": 0.0}).resolve().settings.lr == 0.001
    assert Request(given | {"schedule": "multistep"}).resolve().settings.lr == 0.001


@pytest.mark.parametrize("value", [{"a": [1, 2]}, {"a": {"b": 1}}, [[1, 2], [3]], "x, {y}: [z] # w", "a\nb"])
def test_any_value_of_an_option_survives_the_file(value: Any) -> None:
    resolved = resolve(model="torch.nn:Identity", set={"model.z": value})
    assert yaml.safe_load(resolved.stored())["threat"]["set"]["model.z"] == value
    assert yaml.safe_load(resolved.described())["threat"]["set"]["model.z"] == value


@pytest.mark.parametrize(
    ("text", "folder"),
    [("out: 5", "5")]
    + [(text, "runs/digits-sora-s0") for text in ("seed: 0.0", "out: none", "out: runs/digits-sora-s0")],
)
def test_the_folder_is_known_before_the_types_are_complete(file, text: str, folder: str) -> None:
    request = Request({}, config=str(file(f"dataset: digits\n{text}\n")))
    assert request.path() == request.resolve().settings.folder() == Path(folder)
