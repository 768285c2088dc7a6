"""Every recipe is loaded as `sora train` loads it, and two steps with its own optimiser are taken."""

from __future__ import annotations

import pytest
import torch

from sora import data, methods, models
from sora.training import schedule
from sora.training.config import TrainConfig, defaults, read_recipe, recipe_names
from sora.training.setup import make_optimizer

SHAPES = {  # data set: stored size, size seen by the model, channels, classes
    "digits": (16, 16, 1, 10),
    "cifar10": (32, 32, 3, 10),
    "cifar100": (32, 32, 3, 100),
    "tinyimagenet": (64, 64, 3, 200),
    "imagenet100": (256, 224, 3, 100),
    "pathmnist": (28, 28, 3, 9),
    "tissuemnist": (28, 28, 1, 8),
}


def config(recipe: str, method: str) -> TrainConfig:
    return TrainConfig(**defaults(recipe.split("-")[0], method, {"recipe": recipe}))


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("method", ["free", "sora"])
def test_two_steps_of_every_recipe(recipe: str, method: str) -> None:
    settings = config(recipe, method)
    if settings.norm not in methods.info(method).norms:
        pytest.skip(f"{method} has no {settings.norm} form")
    stored, seen, channels, classes = SHAPES[settings.dataset]
    assert settings.mean is not None
    assert len(settings.mean) == channels
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, stored, stored, channels), generator=generator, dtype=torch.uint8)
    labels = torch.arange(6) % classes
    loader = data.Loader(data.ImageSet(images, labels), 3, data.Augment.parse(settings.augment), seed=0)

    small = {"width": 48, "depth": 1} if settings.model == "vit-small" else {"width": 16}
    options = {**settings.model_options(), **small, "mean": settings.mean, "std": settings.std}
    model = models.create(settings.model, classes, in_channels=channels, image_size=seen, **options)
    threat = settings.threat()
    step = methods.create(method, threat, **vars(settings.hyper()))
    shape = (channels, seen, seen)
    step.setup(n_train=6, shape=shape, batch_size=3, epochs=settings.epochs, steps_per_epoch=2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = make_optimizer(settings, model)
    assert isinstance(optimizer, torch.optim.AdamW if recipe.endswith("-vit") else torch.optim.SGD)
    total = 2 * settings.epochs * step.updates
    middle, rates = total // 2, []  # where the cyclic rates of the recipes are highest
    for update, batch in enumerate(loader.epoch(0), middle):
        assert batch.x.shape[1:] == shape
        out = step.step(model, batch.x, batch.y, index=batch.index, transform=batch.transform)
        assert torch.isfinite(out.loss)
        rates.append(schedule.apply(optimizer, settings, update, total))
        optimizer.step()
        optimizer.zero_grad()
    assert len(rates) == 2
    if settings.schedule == "cyclic":
        assert rates[0] == pytest.approx(settings.lr)
    assert settings.lr_min < rates[1] < rates[0] <= settings.lr
    assert {group["lr"] for group in optimizer.param_groups} == {rates[1]}
    for parameter in model.parameters():
        assert torch.isfinite(parameter).all()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("recipe", "key", "value"),
    [
        ("cifar10", "eps", "8/255"),
        ("tissuemnist", "eps", "3/255"),
        ("tissuemnist", "schedule", "cosine"),
        ("pathmnist", "lr", 0.05),
        ("imagenet100", "batch_size", 32),
        ("tinyimagenet", "augment", ["crop:8", "flip"]),
        ("cifar100-l2", "norm", "l2"),
        ("pathmnist-vit", "model", "vit-small"),
        ("pathmnist-vit", "augment", ["flip", "rotate:10"]),
    ],
)
def test_recipes_say_what_the_paper_says(recipe: str, key: str, value: object) -> None:
    assert read_recipe(recipe)[key] == value


@pytest.mark.parametrize("recipe", [name for name in recipe_names() if not name.startswith("digits")])
def test_settings_that_depend_on_the_data_set(recipe: str) -> None:
    few = recipe.startswith(("cifar10-", "pathmnist", "tissuemnist")) or recipe == "cifar10"
    ten = recipe == "cifar10" or recipe.startswith("cifar10-")
    assert config(recipe, "nuat").set["nuat.lam"] == (4.0 if few else 1.0)
    assert config(recipe, "zerograd").set["zerograd.q"] == (0.35 if ten else 0.45)
    assert config(recipe, "free").epochs == 10
    assert config(recipe, "sora").epochs == 30
