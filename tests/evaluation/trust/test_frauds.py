"""Every planted fraud is caught by the masking tests, and no honest model is accused."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sora
from sora import evaluate
from sora.cli import main
from sora.evaluation import Evaluation
from sora.evaluation.trust import TESTS
from sora.threat import L2, Linf, Threat
from tests.evaluation.trust.conftest import EPS
from tests.evaluation.trust.frauds import CAUGHT_BY, FRAUDS, LikeOverfitted

Images = tuple[Tensor, Tensor]


def judge(model: nn.Module, images: Images, threat: Threat | None = None) -> Evaluation:
    return evaluate(model, images, threat or Linf(EPS), "clean,fgsm,pgd10", trust=True)


def failed(evaluation: Evaluation) -> set[str]:
    return {finding.test for finding in evaluation.failed_tests}


@pytest.mark.parametrize("threat", [Linf(EPS), L2(1.0)], ids=["linf", "l2"])
@pytest.mark.parametrize("name", ["robust", "ordinary"])
def test_honest_models_are_not_accused(
    name: str, threat: Threat, test_images: Images, request: pytest.FixtureRequest
) -> None:
    evaluation = judge(request.getfixturevalue(name), test_images, threat)
    assert failed(evaluation) == set()
    assert evaluation.accuracy["clean"] > 0.7
    assert evaluation.verdict == replace(evaluation, trust=[]).verdict
    assert len(evaluation.trust) == len(TESTS) + 1
    assert evaluation.trust[-1].outcome == "not applicable"  # no second model was given


@pytest.mark.parametrize("base", ["robust", "ordinary"])
@pytest.mark.parametrize("fraud", FRAUDS)
def test_frauds_are_caught(
    fraud: str, base: str, test_images: Images, request: pytest.FixtureRequest
) -> None:
    honest: nn.Module = request.getfixturevalue(base)
    evaluation = judge(FRAUDS[fraud](copy.deepcopy(honest)), test_images)
    expected = CAUGHT_BY[fraud]
    if base == "robust":  # what attacks without its gradients break is little: it is robust behind the mask
        expected = expected - {"smoothed transfer"}
    assert expected <= failed(evaluation)
    assert evaluation.verdict in ("suspect", "overfitted")
    assert all(finding.advice for finding in evaluation.failed_tests)


@pytest.mark.parametrize("fraud", ["quantised input", "zero-gradient stem"])
def test_black_boxes_beat_pgd_where_gradients_are_hidden(
    fraud: str, ordinary: nn.Module, test_images: Images
) -> None:
    evaluation = judge(FRAUDS[fraud](copy.deepcopy(ordinary)), test_images)
    assert {"square", "large eps"} <= failed(evaluation)


def test_a_model_that_withstands_one_step_only_is_caught(ordinary: nn.Module, test_images: Images) -> None:
    evaluation = judge(LikeOverfitted(copy.deepcopy(ordinary)), test_images)
    assert "single step" in failed(evaluation)
    assert evaluation.verdict == "overfitted"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sora", "trades", "pgd-10", "n-fgsm", "benign"])
def test_five_methods_are_not_accused(method: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    assert main(["train", "--method", method, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    evaluation = judge(sora.load(tmp_path / "run"), sora.data.load("digits").test, Linf("0.15"))
    assert failed(evaluation) == set()
    assert evaluation.verdict == ("not robust" if method == "benign" else "robust")


@pytest.mark.slow
def test_fgsm_training_that_overfits_is_caught(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    assert main(["train", "--method", "fgsm", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    evaluation = judge(sora.load(tmp_path / "run"), sora.data.load("digits").test, Linf("0.15"))
    assert "single step" in failed(evaluation)
    assert evaluation.verdict in ("suspect", "overfitted")
