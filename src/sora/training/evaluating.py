"""Evaluations inside a run: the check before the first step, those between epochs, that of the test set."""

from __future__ import annotations

import torch
from torch import nn

from sora._passes import frozen
from sora.attacks import Attack, create_all
from sora.errors import UserError
from sora.evaluation import Evaluation, EvaluationOptions, evaluate
from sora.evaluation.examples import as_examples, in_precision_of
from sora.evaluation.records import evaluate_into
from sora.evaluation.subject import ABOUT, network_facts, select_test_images
from sora.evaluation.validity import inspect_model
from sora.training.keeping import NEEDED
from sora.training.run import Run

CHECKED = 64  # images that the model is checked on before training


def check_model(run: Run) -> None:
    """Raise before the first step if the model could not be trained or evaluated on this data."""
    model, images = run.state.model, run.splits.watched
    with frozen(model):
        examples = in_precision_of(model, as_examples(images))
        x, y = examples.take(torch.arange(min(CHECKED, len(images))), run.device)
        classes = run.dataset.num_classes
        inspection = inspect_model(model, x, y, run.splits.train.labels, run.threat, classes)
    if not inspection.finite_gradients:
        raise UserError(
            "the model's input gradients are NaN or infinite; no attack can be computed with them"
        )
    if inspection.nonnegative:
        run.console.warn("no output of the model is negative: train on logits, not on probabilities")


def evaluate_watched(run: Run, model: nn.Module) -> Evaluation:
    """Accuracy of weights of this step on the watched images."""
    # Training stops at the end of a step, but an evaluation may take hours: a signal ends it at once.
    with run.console.paused(), run.interruptible():
        return evaluate(
            model,
            run.splits.watched,
            run.threat,
            attacks_while_training(run.settings.attacks, run.settings.keep),
            device=run.device,
            progress=run.console.is_shown,
        )


def evaluate_test_set(run: Run, model: nn.Module) -> Evaluation:
    """Accuracy of the final weights on the test set; killed and resumed, it continues where it was."""
    _, images = select_test_images(run.dataset, run.settings.limit_test)
    facts = {key: getattr(run.settings, key, None) for key in ABOUT} | {"weights": run.weights}
    attacks = create_all(run.settings.attacks)
    options = EvaluationOptions(
        num_classes=run.dataset.num_classes,
        device=run.device,
        progress=run.console.is_shown,
        shard=run.world > 1,
        network=network_facts(run.network_description),
    )
    # Training stops at the end of a step, but an evaluation may take hours: a signal ends it at once.
    with run.console.paused(), run.interruptible():
        (evaluation,) = evaluate_into(
            run.folder,
            model,
            run.splits.test,
            [run.threat],
            attacks,
            options,
            about=facts | {"dataset": run.dataset.name, "images": images},
        )
    return evaluation.only(attacks)


def attacks_while_training(names: tuple[str, ...], keep: str = "last") -> list[Attack]:
    """The attacks of evaluations between epochs: PGD-10 in place of those that take hours.

    Where weights are chosen by these evaluations, those that the choice needs are added, and PGD with more
    steps waits for the end as well: every epoch has two kinds of weights to evaluate if they are averaged.
    """
    quick = create_all(["pgd10" if attack.slow else attack for attack in create_all(names)])
    if keep == "last":
        return quick
    needed = create_all(NEEDED)
    most = max(attack.passes for attack in needed)
    return create_all([*(attack for attack in quick if attack.passes <= most), *needed])
