import pickle
import subprocess
import sys
from dataclasses import dataclass, fields

import pytest
import torch

from sora import methods
from sora.errors import UserError
from sora.methods import Crafted, Hyper, Inputs, Method, Smoothing, create, option

from .toys import BALLS, LINF, images, run, two_layer

each_method = pytest.mark.parametrize("name", methods.names())


@pytest.fixture
def toy() -> str:
    """A method that somebody else writes, in their own package."""

    @dataclass(frozen=True)
    class NoiseHyper(Hyper):
        gain: float = option(1.0, "noise in multiples of eps", low=0)

    @methods.register("toy-noise", "random noise", has_pert_align=False, compilable=True)
    class Noise(Method):
        hyper_class = NoiseHyper
        hyper: NoiseHyper

        def draw(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (self.threat.random_start(x) * self.hyper.gain,)

        def craft(self, model: torch.nn.Module, batch: Inputs) -> Crafted:
            return Crafted(self.threat.clamp(batch.x + batch.noise[0]))

    return "toy-noise"


def test_a_method_from_outside_trains_by_name_with_the_same_errors_and_record(toy: str) -> None:
    assert toy in methods.names()
    assert toy in methods.names(in_all=True)
    (x, y), method = images(), create(toy, LINF, gain=0.5)
    out, gradients = run(method, two_layer(), x, y)
    assert 0 < (out.x_adv - x).abs().max() <= 0.5 * LINF.eps + 1e-9
    assert any((g != 0).any() for g in gradients)
    assert out.pert_align.isnan()
    with pytest.raises(UserError, match=r"toy-noise\.gain is -1\.0; allowed: 0 or more"):
        create(toy, LINF, gain=-1)
    with pytest.raises(UserError, match="method 'toy-noise' is already registered"):
        methods.register(toy, "again")(methods.info(toy).cls)
    entry = methods.info(toy)
    assert create(toy, LINF).info is entry.cls.info is entry
    assert entry.compilable
    assert not entry.has_pert_align
    assert methods.info("pgd-2").cls.info is methods.info("pgd")


def test_the_order_of_names_is_the_papers_whatever_is_imported_first() -> None:
    code = "import sora.methods.trades; print(*sora.methods.names())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == methods.names()
    paper = ["benign", "fgsm", "free", "fgsm-rs", "gradalign", "nuat", "zerograd", "multigrad", "n-fgsm"]
    paper += ["atas", "aaer", "elle", "sora", "pgd-2", "pgd-10", "trades", "fgsm-ckpt"]
    paper += ["gat", "fgsm-mep", "fgsm-ep", "fgsm-bp", "fgsm-rs-cs", "fgsm-mep-cs"]
    paper += ["fgsm-uap", "fgsm-cuap", "fgsm-fuap", "fgsm-pco", "liet", "tdat", "fgsm-law", "fgsm-lass"]
    names = methods.names(in_all=True)
    assert [name for name in names if name in paper] == [name for name in paper if name in names]
    assert "pgd" not in names
    assert "pgd" in methods.names()


@pytest.mark.parametrize(
    ("name", "hyper", "message"),
    [
        ("fgsm_rs", {}, "unknown method 'fgsm_rs'; did you mean 'fgsm-rs'"),
        ("atas", {"alpha_min": 2.0}, r"atas\.alpha_min is 2\.0; allowed: 0 to 1\.75"),
        ("benign", {"alpha": 1}, r"unknown option 'benign\.alpha'"),
        ("fgsm-bp", {"mu": 0.3}, r"fgsm-mep\.mu is 0\.3; allowed with memory=row: 0"),
        ("fgsm-bp", {"align": True}, r"fgsm-mep\.align is true; allowed with memory=row: false"),
        ("fgsm-rs", {"alpha": "wide"}, r"fgsm-rs\.alpha is 'wide'; expected a number"),
        ("fgsm-rs", {"smoothing_kind": "other"}, "smoothing_kind is 'other'; did you mean 'others'"),
        ("fgsm-rs-cs", {"initialize": True, "reg_multi": True}, r"cs\.reg_multi is true; allowed with init"),
        ("liet", {"lo": 0.6}, r"liet\.lo is 0\.6; allowed: up to liet\.hi, 0\.5"),
        ("multigrad", {"agree": 4}, r"multigrad\.agree is 4; allowed: 1 to copies \(3\)"),
        ("nuat", {"noise": "normal"}, r"'normal'; did you mean 'uniform'\? allowed: signs, uniform"),
        ("pgd", {"steps": 2.5}, r"pgd\.steps is 2\.5; expected an integer"),
        ("pgd-2", {"attack_mode": "test"}, r"pgd\.attack_mode is 'test'; allowed: train, eval"),
        ("sora", {"alpha": 1}, r"unknown option 'sora\.alpha'; did you mean 'sora\.alpha0'"),
        ("sora", {"coef_clamp": (1,)}, r"sora\.coef_clamp is \(1\.0,\); expected two limits"),
    ],
)
def test_bad_hyper_parameters_get_one_line(name: str, hyper: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        create(name, LINF, **hyper)
    assert "\n" not in str(caught.value)


@each_method
def test_every_option_refuses_what_is_outside_its_range(name: str) -> None:
    entry, some = methods.info(name), {"low": -1, "above": 0, "high": 1}
    for field in [*fields(entry.cls.hyper_class), *fields(Smoothing)]:
        for bound, shift in some.items():
            if field.metadata.get(bound) is not None:
                wrong = field.metadata[bound] + shift
                with pytest.raises(UserError, match=rf"{field.name} is {wrong}(\.0)?; allowed: "):
                    create(name, LINF, **{field.name: wrong})
        if str(field.type).startswith("Literal"):
            with pytest.raises(UserError, match=rf"{field.name} is 'no such'; allowed: "):
                create(name, LINF, **{field.name: "no such"})


@each_method
def test_registry_entry_is_complete_norms_are_checked_and_methods_can_be_pickled(name: str) -> None:
    entry = methods.info(name)
    for norm in BALLS.keys() - entry.norms:
        with pytest.raises(UserError, match=f"{name} is not defined for {norm}; allowed: linf"):
            create(name, BALLS[norm])
    assert entry.summary
    assert entry.forwards
    assert entry.backwards
    assert entry.norms[0] == "linf"
    assert entry.group in methods.GROUPS
    assert entry.cost is not None
    if entry.venue:  # a method of one's own may have no paper yet
        assert entry.paper
        assert entry.venue[-4:].isdigit()
    method = create(name, LINF)
    offered = "strict" in {field.name for field in fields(method.hyper)}
    assert create(name, LINF, **({"strict": True} if offered else {})).strict_gradient == offered
    assert not method.strict_gradient
    copy = pickle.loads(pickle.dumps(method))
    assert copy.hyper == method.hyper
    assert copy.hyper.prefix == method.hyper.prefix
