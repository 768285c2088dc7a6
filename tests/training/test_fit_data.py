"""What `sora.fit` takes beside images: tables, audio, data loaders, other losses and targets."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import sora
from sora.data import Augment, Loader
from sora.data.inputs import from_tensors
from sora.errors import UserError
from sora.evaluation.records import restore
from sora.runs import RunFolder
from sora.training import Interrupted
from tests.training.helpers import SignalAfter

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(240, 20, generator=GENERATOR) * 2
Y = (X[:, :3] @ torch.randn(3, 3, generator=GENERATOR)).argmax(1)
TRAIN, TEST = (X[:160], Y[:160]), (X[160:], Y[160:])
TABLE: dict[str, Any] = {"eps": 0.1, "box": None, "epochs": 1, "lr": 0.1, "quiet": True}
ATTACKS = ("clean", "fgsm", "pgd10")


def mlp(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, outputs))


def weights(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters())


def trained(data: Any, model: nn.Module | None = None, **options: Any) -> Tensor:
    model = model or mlp()
    sora.fit(model, data, **TABLE | options)
    return weights(model)


def test_tensors_and_a_loader_in_the_same_order_give_the_same_weights() -> None:
    sizes = {"batch_size": 32, "holdout": 0}
    plain = trained((TRAIN, TEST), **sizes)
    assert torch.equal(plain, trained((TensorDataset(*TRAIN), DataLoader(TensorDataset(*TEST))), **sizes))
    assert torch.equal(plain, trained(((X[:160].double().numpy(), Y[:160].numpy()), TEST), **sizes))
    ours = Loader(from_tensors(*TRAIN, torch.float32), 32, Augment(), seed=0).epoch(0)
    batches = [(batch.x, batch.y, batch.index) for batch in ours]
    assert torch.equal(plain, trained((batches, TEST)))
    order = [row for *_, index in batches for row in index.tolist()]
    assert torch.equal(plain, trained((DataLoader(TensorDataset(*TRAIN), 32, sampler=order), TEST)))
    assert torch.equal(
        trained((batches, TEST), method="atas"), trained((TRAIN, TEST), method="atas", **sizes)
    )


def test_a_shuffled_loader_is_repeatable_and_a_stream_says_what_it_cannot_promise(capsys: Any) -> None:
    loader = DataLoader(TensorDataset(*TRAIN), 32, shuffle=True)
    runs = [trained((loader, TEST), epochs=2, quiet=False) for _ in range(2)]
    assert torch.equal(*runs)
    assert capsys.readouterr().err.count("the training data is a stream") == 2  # once a run
    with pytest.raises(UserError, match="atas stores something for each training example: pass tensors"):
        trained((loader, TEST), method="atas")


def test_a_killed_run_on_a_loader_continues(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(*TRAIN), 32, shuffle=True)
    whole = trained((loader, TEST), epochs=2)
    model = mlp()
    with pytest.raises(Interrupted):
        trained((loader, TEST), model, epochs=2, out=tmp_path / "a", hooks=[SignalAfter(3, signal.SIGTERM)])
    model = mlp()
    assert torch.equal(trained((loader, TEST), model, epochs=2, out=tmp_path / "a", resume=True), whole)


@pytest.mark.parametrize("shape", [(1, 100), (2, 4, 4, 4), (3, 6, 6)])
def test_floats_of_any_shape_with_any_box(shape: tuple[int, ...]) -> None:
    x, y = torch.rand(40, *shape, generator=GENERATOR) * 2 - 1, torch.arange(40) % 2
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 2))
    result = sora.fit(model, ((x, y), (x, y)), eps=0.1, box=(-1, 1), epochs=1, batch_size=10, quiet=True)
    assert result.threat.box == (-1, 1)
    assert result.n == 40


def test_a_multi_label_model_becomes_robust() -> None:
    labels = (X[:, :2] > 0).float()
    data, threat = ((X[:160], labels[:160]), (X[160:], labels[160:])), sora.Linf(0.3, box=None)
    model = mlp(2)
    sora.fit(model, data, "benign", loss="multi-label", batch_size=32, **TABLE | {"eps": 0.3, "epochs": 10})
    before = sora.evaluate(model, data[1], threat, loss="multi-label")
    model = mlp(2)
    options: Any = TABLE | {"eps": 0.3, "epochs": 20}
    after = sora.fit(model, data, loss="multi-label", batch_size=32, **options)
    assert after.accuracy["pgd10"] > before.accuracy["pgd10"]
    assert after.verdict == "robust"
    assert after.losses["clean"] < after.losses["pgd10"]
    assert after.accuracy == sora.evaluate(model, data[1], threat, loss="multi-label").accuracy


def square(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean(1)


@pytest.mark.parametrize("judged", [True, False])
def test_a_loss_of_ones_own_has_a_verdict_only_with_correct(judged: bool, tmp_path: Path) -> None:
    data = ((X[:160], X[:160, :2]), (X[160:], X[160:, :2]))
    correct = (lambda out, y: (out - y).abs().amax(1) < 1.5) if judged else None
    options = {"loss": square, "correct": correct, "batch_size": 32, "epochs": 8, "out": tmp_path / "a"}
    model = mlp(2)
    result = sora.fit(model, data, **TABLE | options)
    assert (result.verdict is not None) == bool(result.accuracy) == judged
    assert set(result.losses) == set(ATTACKS)
    assert result.losses["pgd10"] > result.losses["clean"]
    assert ("loss" in repr(result)) == (not judged)
    stored, (record,) = RunFolder(tmp_path / "a").read_summary(), RunFolder(tmp_path / "a").read_evaluations()
    assert restore(record, torch.ones(80, dtype=torch.int64), result.threat).losses == result.losses
    assert stored["losses"] == result.losses
    assert stored["accuracy"] == result.accuracy


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([TRAIN])


BATCH = (X[:32], Y[:32])


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ((TRAIN, TEST), {"batch_size": 5000}, "^batch_size 5000 must lie between"),
        ((TRAIN, TEST), {"batch_size": 32, "holdout": 999}, "^holdout: given:tensors's training set has 160"),
        ((TRAIN, TEST), {"batch_size": 32, "augment": "flip"}, "^augment is for uint8 images"),
        (
            ([BATCH], TEST),
            {"batch_size": 32},
            "batch_size is for tensors and torch Datasets",
        ),
        (([BATCH], TEST), {"accumulate": 2}, "accumulate is for tensors and torch Datasets"),
        (([{"x": X}], TEST), {}, "the data yields dict; expected tensors"),
        (([], TEST), {}, "the data has no batch"),
        ((Endless(), TEST), {}, "a Endless has no len\\(\\)"),
        ((iter([BATCH]), TEST), {}, "a list_iterator has no len"),
        ((7, TEST), {}, "data has 7; expected a pair"),
        ((TRAIN, (X[:9, :7], Y[:9])), {}, r"training inputs have shape \(20,\), test inputs \(7,\)"),
        (TRAIN[0], {}, "data is Tensor; expected a name, a Dataset, or"),
    ],
)
def test_wrong_data_is_one_line_with_names_of_arguments(data: Any, options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        trained(data, **options)
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)
