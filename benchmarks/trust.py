"""The cost of the masking tests (`sora evaluate --trust`) beside a PGD-10 evaluation of the same images.

The budget is 2. Random weights: no image is robust to PGD-10 by training, so all tests that attack what PGD
leaves are also timed on a model whose gradient is hidden, where every image is left: the most expensive case.

    python benchmarks/trust.py --images 256 --threads 1 --clock cpu
"""

from collections.abc import Sequence

import torch
from _timing import Call, arguments, finish, interleave, relative, start, table
from torch import Tensor, nn

from sora import evaluate, models
from sora.evaluation import EvaluationOptions
from sora.evaluation.examples import as_examples
from sora.evaluation.trust import masking_tests
from sora.threat import Linf


class Rounded(nn.Module):
    """Rounds its input, which hides the gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The logits of the rounded image."""
        logits: Tensor = self.model((x * 255).round() / 255)
        return logits


def main(argv: Sequence[str] | None = None) -> None:
    args = start(arguments(__doc__, images=256, width=8, rounds=5), argv)
    threat, device = Linf("8/255"), torch.device("cpu")
    model: nn.Module = models.create("preactresnet18", 10, width=args.width).eval()
    x = torch.rand(args.images, 3, 32, 32)
    with torch.no_grad():
        data = (x, model(x).argmax(1))  # every image counts as correctly classified
    examples, options = as_examples(data), EvaluationOptions()
    calls: dict[str, Call] = {"pgd10": lambda: evaluate(model, data, threat, ["pgd10"])}
    for name, network in (("tests", model), ("tests, hidden gradient", Rounded(model))):
        calls[name] = lambda of=network: masking_tests(of, examples, threat, device, options)
    rows = relative(interleave(calls, args.rounds, args.clock), "pgd10")
    table(f"{args.images} images, width {args.width}", rows)
    finish(args, "trust", {"width": args.width, "images": args.images, "rows": rows})


if __name__ == "__main__":
    main()
