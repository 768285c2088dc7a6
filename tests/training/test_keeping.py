"""`--keep`: which epoch's weights are handed over, and what the summary says about it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sora import Linf
from sora.evaluation import Evaluation
from sora.runs import RunFolder
from sora.settings import Settings
from sora.training import Hook, train
from sora.training.evaluating import better_weights, note_evaluation, score
from sora.training.state import State
from tests.training.helpers import BuildSettings, Killed, kill_at

LINEAR = {"model": "given:Sequential", "eps": "0.02", "batch_size": 8, "lr": 0.05}  # 12 steps per epoch
EPOCH = 12


class Spoil(Hook):
    """Sets all weights to zero at the beginning of the third epoch and after it."""

    def before_step(self, run: Any, batch: Any) -> None:
        if run.state.step >= 2 * EPOCH:
            for parameter in run.state.model.parameters():
                parameter.data.zero_()


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 10))


def trained(config: Settings, *hooks: Hook) -> tuple[RunFolder, dict[str, Any]]:
    result = train(config, model=linear(), hooks=[Spoil(), *hooks], quiet=True)
    return RunFolder(config.folder()), result.summary


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def best_weights(folder: RunFolder, prefix: str) -> dict[str, Tensor]:
    stored = load_file(folder.checkpoints.best)
    return {name.removeprefix(prefix): t for name, t in stored.items() if name.startswith(prefix)}


class TestChoice:
    @pytest.mark.parametrize("keep", ["best", "best-robust"])
    def test_the_best_epoch_is_handed_over_and_named(self, settings: BuildSettings, keep: str) -> None:
        folder, summary = trained(settings("fgsm", keep=keep, **LINEAR))
        lines = [line["accuracy"] for line in folder.read_log("evals")]
        value = {"best": lambda a: a["clean"] + a["pgd10"], "best-robust": lambda a: a["pgd10"]}[keep]
        best = max(range(3), key=lambda k: value(lines[k]))
        assert best < 2, "the third epoch was spoiled"
        kept = summary["kept"]
        assert summary["weights"] == keep
        assert (kept["best"]["epoch"], kept["best"]["step"]) == (best + 1, (best + 1) * EPOCH)
        assert kept["best"]["low"] <= lines[best]["pgd10"] == kept["best"]["pgd10"] <= kept["best"]["high"]
        assert kept["last"]["epoch"] == 3
        assert f"weights of epoch {best + 1}: highest" in kept["reason"]
        assert "20 held-out images" in kept["reason"]
        assert same(load_file(folder.weights), load_file(folder.snapshots.files()[(best + 1) * EPOCH]))

    def test_by_default_the_last_weights_are(self, settings: BuildSettings) -> None:
        folder, summary = trained(settings("fgsm", **LINEAR))
        assert summary["weights"] == "last"
        assert "kept" not in summary
        assert same(load_file(folder.weights), load_file(folder.snapshots.files()[3 * EPOCH]))

    @pytest.mark.parametrize(("decay", "weights"), [(0.9999, "raw"), (0.9, "averaged")])
    def test_raw_and_averaged_weights_compete(self, settings, decay: float, weights: str) -> None:
        """An average over ten thousand updates is still near the initial weights; a short one is ahead."""
        config = settings("fgsm", keep="best-robust", ema=decay, **LINEAR)
        if weights == "averaged":  # steps so long that the raw weights jump to and fro
            config = replace(config, lr=20.0, lr_min=20.0)
        folder, summary = trained(config)
        best = summary["kept"]["best"]
        assert best["step"] < 3 * EPOCH
        assert best["weights"] == weights
        assert summary["kept"]["reason"].startswith(f"{weights} weights of epoch {best['epoch']}: highest")
        lines = {line["step"]: line for line in folder.read_log("evals")}
        assert lines[best["step"]]["weights"] == weights
        prefix = {"raw": "model.", "averaged": "ema.module."}[weights]
        assert same(load_file(folder.weights), best_weights(folder, prefix))

    def test_weights_that_a_method_averages_are_those_of_the_best_epoch(self, settings) -> None:
        folder, summary = trained(settings("fgsm-law", keep="best-robust", **LINEAR))
        best = summary["kept"]["best"]
        assert best["step"] < 3 * EPOCH
        prefix = {"raw": "model.", "averaged": "method.average."}[best["weights"]]
        assert same(load_file(folder.weights), best_weights(folder, prefix))

    @pytest.mark.parametrize("ema", [None, 0.9999])
    def test_a_killed_run_makes_the_same_choice_by_pgd_although_only_fgsm_was_asked_for(
        self, settings: BuildSettings, ema: float | None
    ) -> None:
        options = LINEAR | {"keep": "best-robust", "ema": ema, "attacks": ("clean", "fgsm")}
        one, summary = trained(settings("fgsm", out="one", **options))
        assert all("pgd10" in line["accuracy"] for line in one.read_log("evals"))
        assert "pgd10" not in summary["accuracy"]  # the test set is evaluated as asked
        config = settings("fgsm", out="other", **options)
        with pytest.raises(Killed):
            trained(config, kill_at(2 * EPOCH + 3))
        other, again = trained(config)
        assert again["kept"] == summary["kept"]
        assert one.weights.read_bytes() == other.weights.read_bytes()


class TestScore:
    def evaluation(self, **correct: int) -> Evaluation:
        labels = torch.ones(10, dtype=torch.long)
        predictions = {name: (torch.arange(10) < count).long() for name, count in correct.items()}
        return Evaluation(Linf(0.1), labels, 2, predictions, {})

    def test_fgsm_plays_no_part(self) -> None:
        collapsed = self.evaluation(clean=10, fgsm=10, pgd10=1)
        robust = self.evaluation(clean=8, fgsm=6, pgd10=5)
        for keep in ("best", "best-robust"):
            assert score(robust, keep) > score(collapsed, keep)

    def test_best_counts_clean_accuracy_as_well(self) -> None:
        one, other = self.evaluation(clean=9, pgd10=4), self.evaluation(clean=6, pgd10=5)
        assert score(one, "best") > score(other, "best")
        assert score(one, "best-robust") < score(other, "best-robust")

    def test_raw_weights_win_a_tie_and_a_void_evaluation_loses(self) -> None:
        one, other = self.evaluation(clean=9, pgd10=4), self.evaluation(clean=9, pgd10=4)
        assert better_weights({"raw": one, "averaged": other}, "best-robust") == ("raw", one)
        more = self.evaluation(clean=5, pgd10=5)
        assert better_weights({"raw": one, "averaged": more}, "best-robust") == ("averaged", more)
        void = replace(more, void={"pgd10": "gradients are not finite"})
        assert better_weights({"raw": one, "averaged": void}, "best-robust") == ("raw", one)

    def test_clean_accuracy_decides_between_epochs_of_equal_robustness(self) -> None:
        state = State(*[None] * 4)  # type: ignore[arg-type]
        decisions = []
        for clean, pgd10 in ((6, 4), (7, 4), (7, 4), (6, 5), (9, 4)):
            state.step += 1
            evaluation = self.evaluation(clean=clean, pgd10=pgd10)
            decisions.append(note_evaluation(state, "best-robust", evaluation, {}))
        assert decisions == [True, True, False, True, False]
        assert state.evaluated_epochs["best"]["step"] == 4
