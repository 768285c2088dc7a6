"""Every recipe is loaded as `sora train` loads it, and two steps with its own optimiser are taken."""

import pytest
import torch

from sora import data, methods, models
from sora.errors import UserError
from sora.methods import soft_targets
from sora.settings import Request, Settings, recipes
from sora.training import schedule
from sora.training.muon import Muon
from sora.training.state import make_optimizer

NAMES = recipes.names()
BENCHMARK = "fastat-cifar10"
FAST = "cifar10-fast"

SHAPES = {  # data set: stored size, size seen by the model, channels, classes
    "digits": (16, 16, 1, 10),
    "cifar10": (32, 32, 3, 10),
    "cifar100": (32, 32, 3, 100),
    "tinyimagenet": (64, 64, 3, 200),
    "imagenet100": (256, 224, 3, 100),
    "pathmnist": (28, 28, 3, 9),
    "tissuemnist": (28, 28, 1, 8),
}


def dataset_of(recipe: str) -> str:
    return "cifar10" if recipe in ("vit-adamw", "finetune", BENCHMARK) else recipe.split("-")[0]


def config(recipe: str, method: str) -> Settings:
    return Request({"dataset": dataset_of(recipe), "method": method}, recipe=recipe).resolve().settings


@pytest.mark.parametrize("recipe", NAMES)
@pytest.mark.parametrize("method", ["free", "sora"])
def test_two_steps_of_every_recipe(recipe: str, method: str) -> None:
    settings = config(recipe, method)
    if settings.norm not in methods.info(method).norms:
        pytest.skip(f"{method} has no {settings.norm} form")
    stored, seen, channels, classes = SHAPES[settings.dataset]
    assert (settings.mean is None) == (recipe == BENCHMARK)
    assert settings.mean is None or len(settings.mean) == channels
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, stored, stored, channels), generator=generator, dtype=torch.uint8)
    labels = torch.arange(6) % classes
    loader = data.Loader(data.ImageSet(images, labels), 3, data.Augment.parse(settings.augment), seed=0)

    small = {"width": 48, "depth": 1} if settings.model == "vit-small" else {"width": 4}
    options = {**settings.model_options(), **small, "mean": settings.mean, "std": settings.std}
    model = models.create(settings.model, classes, in_channels=channels, image_size=seen, **options)
    threat = settings.threat()
    step = methods.create(method, threat, **vars(settings.hyper()))
    shape = (channels, seen, seen)
    step.setup(n_train=6, shape=shape, batch_size=3, epochs=settings.epochs, steps_per_epoch=2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = make_optimizer(settings, model)
    kind = {"vit-adamw": torch.optim.AdamW, FAST: Muon}.get(recipe, torch.optim.SGD)
    assert isinstance(optimizer, kind)
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
    assert settings.lr_min < rates[1] <= rates[0] <= settings.lr
    assert rates[1] < rates[0] or settings.schedule == "one-cycle"  # which is constant within an epoch
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
        ("pathmnist-vit", "optimizer", "sgd"),
        ("cifar10-vit", "lr", 0.2),
    ],
)
def test_recipes_say_what_the_paper_says(recipe: str, key: str, value: object) -> None:
    assert recipes.flattened(recipe)[key] == value


@pytest.mark.parametrize(
    "recipe", [name for name in NAMES if name not in ("digits", "finetune", FAST, BENCHMARK)]
)
def test_settings_that_depend_on_the_data_set(recipe: str) -> None:
    few = dataset_of(recipe) in ("cifar10", "pathmnist", "tissuemnist")
    ten = dataset_of(recipe) == "cifar10"
    assert config(recipe, "nuat").set["nuat.lam"] == (4.0 if few else 1.0)
    assert config(recipe, "zerograd").set["zerograd.q"] == (0.35 if ten else 0.45)
    assert config(recipe, "free").epochs == 10
    assert config(recipe, "sora").epochs == 30


@pytest.mark.parametrize("recipe", sorted({*NAMES} - {"digits", "vit-adamw", "finetune", FAST, BENCHMARK}))
def test_a_recipe_of_the_paper_says_that_the_paper_held_out_nothing(recipe: str) -> None:
    assert "--holdout 0" in recipes.flattened(recipe)["note"]


class TestBenchmark:
    @pytest.mark.parametrize("method", methods.names())
    def test_every_method_can_be_trained_with_it(self, method: str) -> None:
        settings = config(BENCHMARK, method)
        assert (settings.model, settings.mean, settings.std) == ("resnet18", None, None)
        assert settings.epochs == (50 if method == "free" else 100)
        own = methods.info(method).own_targets
        assert settings.smoothing == (0 if own or method == "aaer" else 0.4)

    def test_it_says_what_the_specification_says(self) -> None:
        settings = config(BENCHMARK, "n-fgsm")
        assert (settings.schedule, settings.lr, settings.lr_min) == ("one-cycle", 0.1, 4e-7)
        assert (settings.momentum, settings.cycle_momentum) == (0.95, True)
        assert (settings.batch_size, settings.weight_decay, settings.eps) == (128, 5e-4, "8/255")
        assert (settings.ema, settings.ema_buffers, settings.keep) == (0.9995, "average", "best-robust")
        assert (settings.smoothing_kind, settings.smooth_attack) == ("uniform", True)
        assert settings.augment == ("crop:4", "flip")

    def test_fgsm_mep_has_the_targets_of_the_general_smoothing(self) -> None:
        settings, (logits, y) = config(BENCHMARK, "fgsm-mep"), (torch.zeros(2, 10), torch.tensor([3, 7]))
        own = soft_targets(logits, y, 1 - settings.set["fgsm-mep.phi"], "others")
        torch.testing.assert_close(own, soft_targets(logits, y, 0.4, "uniform"))

    def test_an_explicit_smoothing_is_still_refused(self) -> None:
        with pytest.raises(UserError, match=r"liet has targets of its own \(liet.nu\)"):
            Request({"dataset": "cifar10", "method": "liet", "smoothing": 0.4}, recipe=BENCHMARK).resolve()


@pytest.mark.parametrize(
    ("dataset", "method", "options"),
    [
        ("cifar10", "liet", {"lam": 100, "nu": 0.6}),
        ("cifar100", "liet", {"lam": 200, "nu": 0.8}),
        ("tinyimagenet", "liet", {"lam": 100, "nu": 0.6}),
        ("cifar10", "fgsm-fuap", {"count": 50}),
        ("cifar100", "fgsm-fuap", {"count": 200}),
        ("tinyimagenet", "fgsm-fuap", {"count": 300}),
        ("cifar10", "fgsm-mep", {"reset_every": 40}),
        ("tinyimagenet", "fgsm-ep", {"reset_every": 10}),
        ("cifar100", "tdat", {"gam_min": 0.05, "lam": 0.05}),
        ("tinyimagenet", "tdat", {"gam_min": 0.05, "lam": 0.025}),
        ("imagenet100", "tdat", {"gam_min": 0.1, "lam": 0.05}),
        ("imagenet100", "gat", {"lam": 20, "boost": 7, "boost_from": 0.75}),
        ("cifar100", "fgsm-law", {"lam": 42, "phi": 0.5, "theta": 0.55, "c_max": 0.9998, "gate_add": 1}),
        ("tinyimagenet", "fgsm-law", {"lam": 38, "phi": 0.3, "theta": 0.55, "c_max": 0.999, "gate_add": 1}),
        ("tinyimagenet", "fgsm-law", {"reference": "start"}),
    ],
)
def test_methods_have_their_authors_settings_for_the_data_set(dataset, method, options) -> None:
    """more-methods.md, section 3, number 3 of each method."""
    found = vars(config(dataset, method).hyper())
    assert {name: found[name] for name in options} == options
