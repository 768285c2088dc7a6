"""Settings: where they come from, and what is refused."""

import dataclasses
import math

import pytest
import yaml

from sora import methods
from sora.errors import UserError
from sora.settings import GROUPS, Settings
from sora.settings.fields import field_names


def test_the_help_names_the_methods_that_can_be_compiled() -> None:
    text = Settings.__dataclass_fields__["compile"].metadata["help"]
    own = [name for name in methods.names() if methods.info(name).compilable]
    assert f"only for {', '.join(own)}, in one process" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs is 0; allowed: 1 or more"),
        ({"epochs": 2.5}, "epochs is 2.5; expected an integer"),
        ({"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
        ({"lr": "fast"}, "lr is 'fast'; expected a number"),
        ({"lr": math.nan}, "lr is nan; expected a number"),
        ({"momentum": 1.5}, "momentum is 1.5; allowed: 0 to 1"),
        ({"guard": "rolback"}, "guard is 'rolback'; did you mean 'rollback'? allowed: off, warn, stop"),
        ({"guard": "shout"}, "guard is 'shout'; allowed: off, warn, stop, rollback, pgd"),
        ({"method": "sroa"}, "did you mean 'sora'"),
        ({"dataset": "cifar11"}, "unknown data set 'cifar11'"),
        ({"model": "resnet19"}, "did you mean 'resnet18'"),
        ({"attacks": ("clean", "pdg10")}, "pdg10"),
        ({"augment": ("crop:4", "flop")}, "flop"),
        ({"set": {"fgsm.alpha": 1}}, "'fgsm.alpha' is not an option of sora"),
        ({"set": {"sora.alpah0": 1}}, "did you mean 'sora.alpha0'"),
        ({"set": {"sora.alpha0": -1}}, "sora.alpha0 is -1.0; allowed: more than 0"),
        ({"ema": 1}, "would never change"),
        *[({"eps": eps}, "eps") for eps in ("-1", "0", "nan", "8/0", "text", "inf", "")],
        ({"bach_size": 3}, "did you mean 'batch_size'"),
        ({"model": "torch.nn:Identity", "mean": [0.5]}, "mean and std are for the built-in networks"),
        ({"keep": "best", "epochs": 5, "eval_every": 6}, "eval_every at most epochs"),
        ({"image_sizes": (16, 0)}, "image_sizes is 0; allowed: 1 or more"),
        ({"image_sizes": (16, 32), "epochs": 1}, "image_sizes has 2 sizes for 1 epochs"),
        ({"image_sizes": (16, 32), "method": "atas"}, "image_sizes does not work with atas"),
        ({"sync_bn": True, "ema": 0.9, "ema_buffers": "estimate"}, "does not work with sync_bn"),
    ],
)
def test_bad_settings_get_one_line(changes, message) -> None:
    with pytest.raises(UserError) as caught:
        Settings.build(changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_setting_is_in_one_group_and_presets_set_their_familys_options() -> None:
    names = field_names()
    assert len(names) == len(set(names))
    assert set(names) == {field.name for field in dataclasses.fields(Settings)}
    assert list(GROUPS) == ["data", "network", "threat", "labels", "optimisation", "watching", "machine"]
    settings = Settings.build({"method": "pgd-2"})
    assert (settings.set["pgd.steps"], settings.set["pgd.alpha"]) == (2, 0.5)
    assert Settings.build({"method": "pgd-10", "set": {"pgd.steps": 7}}).hyper().steps == 7


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("digits", "digits-sora-s3"),
        ("folder:/a b/c", "folder--a-b-c-sora-s3"),
        ("npz:x.npz", "npz-x-npz-sora-s3"),
    ],
)
def test_default_folders_have_letters_digits_and_dashes(dataset: str, name: str) -> None:
    assert Settings.build({"dataset": dataset, "seed": 3}).folder().name == name


def test_flat_values_survive_yaml() -> None:
    settings = Settings.build({"augment": "crop:4,flip", "lr": 1e-3})
    assert Settings.build(yaml.safe_load(yaml.safe_dump(settings.flat()))) == settings
