"""Settings: where they come from, and what is refused."""

import math

import pytest

from sora.errors import UserError
from sora.training import schedule
from sora.training.config import TrainConfig, defaults, merge, read_config_file, read_recipe, recipe_names


@pytest.mark.parametrize("eps", ["-1", "0", "nan", "8/0", "text", "inf", ""])
def test_eps_that_cannot_train(eps) -> None:
    with pytest.raises(UserError, match="eps"):
        TrainConfig(eps=eps)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs is 0; allowed: 1 or more"),
        ({"epochs": 2.5}, "epochs is 2.5; expected a whole number"),
        ({"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
        ({"lr": "fast"}, "lr is 'fast'; expected a number"),
        ({"lr": math.nan}, "lr is nan; expected a number"),
        ({"momentum": 1.5}, "momentum is 1.5; allowed: 0 to 1"),
        ({"guard": "shout"}, "guard is 'shout'; allowed: off, warn, stop, rollback, pgd"),
        ({"method": "sroa"}, "did you mean 'sora'"),
        ({"dataset": "cifar11"}, "unknown data set 'cifar11'"),
        ({"model": "resnet19"}, "did you mean 'resnet18'"),
        ({"attacks": ("clean", "pdg10")}, "pdg10"),
        ({"augment": ("crop:4", "flop")}, "flop"),
        ({"set": {"fgsm.alpha": 1}}, "'fgsm.alpha' belongs to another method"),
        ({"set": {"sora.alpha0": -1}}, "sora.alpha0 is -1.0; allowed: more than 0"),
        ({"ema": 1}, "never moves"),
    ],
)
def test_bad_settings_get_one_line(changes, message) -> None:
    with pytest.raises(UserError) as caught:
        TrainConfig.build(changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'batch_size'"):
        TrainConfig.build({"bach_size": 3})


def test_yaml_writes_small_numbers_as_text(tmp_path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("lr: 1e-3\nset: {sora.alpha0: 2e-2}\n")
    config = TrainConfig.build(defaults("digits", "sora", read_config_file(str(file))))
    assert config.lr == 0.001
    assert config.set["sora.alpha0"] == 0.02


def test_file_wins_over_recipe_and_recipe_over_default() -> None:
    table = defaults("digits", "sora", {"epochs": 5})
    config = TrainConfig.build(table)
    assert (config.epochs, config.width, config.eps, config.momentum) == (5, 16, "0.15", 0.9)


def test_what_a_recipe_says_of_one_method_stays_there() -> None:
    file = {"methods": {"free": {"epochs": 4}}, "set": {"fgsm.alpha": 1.5, "sora.beta": 0.1}}
    assert defaults("digits", "free", file)["epochs"] == 4
    sora = defaults("digits", "sora", file)
    assert sora["epochs"] == 20
    assert sora["set"] == {"model.stages": 2, "sora.beta": 0.1}


def test_size_of_a_recipes_network_is_not_forced_on_another() -> None:
    table = defaults("digits", "sora", None, "resnet18")
    assert "width" not in table
    assert "model.stages" not in table["set"]


def test_config_file_with_unknown_key(tmp_path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("epoch: 3\n")
    with pytest.raises(UserError, match="did you mean 'epochs'"):
        read_config_file(str(file))


@pytest.mark.parametrize("text", ["[1, 2", "just text", "- a\n- b"])
def test_config_file_that_is_no_table(text, tmp_path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(UserError):
        read_config_file(str(file))


def test_presets_set_their_familys_options() -> None:
    config = TrainConfig.build({"method": "pgd-2"})
    assert (config.set["pgd.steps"], config.set["pgd.alpha"]) == (2, 0.5)
    assert TrainConfig.build({"method": "pgd-10", "set": {"pgd.steps": 7}}).hyper().steps == 7


def test_resolved_settings_survive_yaml() -> None:
    import yaml

    config = TrainConfig.build(defaults("digits", "sora"))
    assert TrainConfig.build(yaml.safe_load(config.to_yaml())) == config


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_resolves(name) -> None:
    table = read_recipe(name)
    table.pop("methods", None)
    dataset = table.get("dataset", name.split("-")[0])
    config = TrainConfig.build(defaults(dataset, "sora", {"recipe": name}))
    assert config.epochs >= 1


def test_merge_joins_tables() -> None:
    assert merge({"set": {"a": 1}, "x": 1}, {"set": {"b": 2}, "x": 2}) == {"set": {"a": 1, "b": 2}, "x": 2}


class TestSchedule:
    config = TrainConfig(lr=0.2, lr_min=0.01, schedule="cyclic")

    def test_cyclic_rises_to_the_middle_and_falls(self) -> None:
        rates = [schedule.learning_rate(self.config, update, 10) for update in range(11)]
        assert rates[0] == pytest.approx(0.01)
        assert rates[5] == pytest.approx(0.2)
        assert rates[10] == pytest.approx(0.01)
        assert rates[:6] == sorted(rates[:6])
        assert rates[5:] == sorted(rates[5:], reverse=True)

    def test_odd_totals_rise_over_the_smaller_half(self) -> None:
        rates = [schedule.learning_rate(self.config, update, 5) for update in range(6)]
        assert max(range(6), key=rates.__getitem__) == 2

    def test_cosine(self) -> None:
        config = TrainConfig(lr=0.05, lr_min=0.001, schedule="cosine")
        assert schedule.learning_rate(config, 0, 100) == pytest.approx(0.05)
        assert schedule.learning_rate(config, 50, 100) == pytest.approx(0.0255)
        assert schedule.learning_rate(config, 100, 100) == pytest.approx(0.001)

    def test_multistep(self) -> None:
        config = TrainConfig(lr=0.1, schedule="multistep", milestones=(0.5, 0.75))
        rates = [schedule.learning_rate(config, update, 8) for update in range(8)]
        assert rates == pytest.approx([0.1] * 4 + [0.01] * 2 + [0.001] * 2)

    def test_momentum_is_constant_unless_asked(self) -> None:
        assert {schedule.momentum(self.config, update, 10) for update in range(10)} == {0.9}
        cycled = TrainConfig(cycle_momentum=True)
        assert schedule.momentum(cycled, 5, 10) == pytest.approx(0.8)
        assert schedule.momentum(cycled, 0, 10) == pytest.approx(0.9)

    def test_eps_warmup(self) -> None:
        config = TrainConfig(eps_warmup=2)
        assert [schedule.eps_factor(config, step, 2) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
        assert schedule.eps_factor(TrainConfig(), 0, 10) == 1.0
