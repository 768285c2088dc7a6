"""`sora predict`: the class of single images, and whether an attack changes it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from sora._devices import pick_device, set_threads
from sora.attacks import create
from sora.cli._parse import flag, parse, print_json
from sora.cli._tables import plain_table
from sora.errors import UserError
from sora.evaluation.prediction import predict
from sora.runs import RunFolder, load_model
from sora.threat import eps_text, threat


@dataclass(frozen=True)
class Flags:
    """Classify image files with the model of a run, and say whether an attack flips the answer."""

    run: str = flag("", "a run folder, or zoo:NAME (`sora list zoo`)", metavar="RUN", positional=True)
    images: Sequence[str] = flag((), "image files", metavar="IMAGE [IMAGE ...]", positional=True)
    eps: str | None = flag(None, "a radius other than the run's")
    attack: str = flag("pgd10", "the attack, from `sora list attacks`")
    model: str | None = flag(None, "for a run with a custom network: its package.module:function")
    device: str = flag("auto", "cpu, cuda, cuda:1, mps, xpu ...; auto: a GPU if there is one")
    threads: int = flag(0, "CPU threads; 0: torch's choice")
    json: bool = flag(False, "print as JSON")


def run(argv: list[str]) -> int:
    """Load the model, classify, attack, print."""
    flags = parse(Flags, argv, "predict")
    set_threads(flags.threads)
    folder, attack = RunFolder(flags.run), create(flags.attack)
    if attack.name == "clean":
        raise UserError(
            "--attack clean changes no image; choose an attack such as pgd10 (`sora list attacks`)"
        )
    settings, description = folder.read_settings(), folder.read_model()
    folder.check_weights(description)
    attack = attack.for_classes(description["num_classes"])
    model = load_model(description, folder.weights, flags.model, str(pick_device(flags.device)))
    ball = threat(settings.norm, flags.eps or settings.eps)
    summary = folder.read_summary()
    data = summary.get("data") or {}
    tested = data.get("image_size") or 2 * [description["image_size"]]  # model.json has the height alone
    size, stored = [(height, width) for height, width in (tested, data.get("stored_size") or tested)]
    answers, problems = predict(model, description, flags.images, ball, attack, size=size, stored=stored)
    if flags.json:
        about = {"attack": attack.name, "norm": ball.norm, "eps": ball.eps}
        print_json([answer.record() | about for answer in answers])
    elif answers:
        rows = []
        for answer in answers:
            becomes = f"becomes {answer.attacked}" if answer.flips else "stays"
            rows.append([answer.image, answer.predicted, f"{100 * answer.probability:.1f} %", becomes])
        under = f"under {attack.name}, {ball.norm} {eps_text(ball.eps)}"
        plain_table("", ["image", "class", "probability", under], rows)
    if problems:
        raise UserError("; ".join(problems))
    for text in summary.get("warnings") or ():
        print(f"sora: warning: {text}", file=sys.stderr)
    return 0
