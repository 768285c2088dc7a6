"""Our SORA step against the loop as it is usually published.

The textbook loop below does the same mathematics with the same network and optimiser settings: a full
backward pass for the attack, inputs and bounds in normalised space, numbers brought to the host at every
batch, images in NCHW. `own process` runs each side alternately in processes of its own, as a user would: ours
with the allocator setting of `sora train`, the textbook's with the C library's defaults.

python benchmarks/textbook.py [--width 16] [--rounds 11] [--processes 3] [--threads 1 --clock cpu]
"""

import subprocess
import sys
from typing import Any

import torch
from _timing import (
    EPS,
    MEAN,
    STD,
    Call,
    Trainer,
    arguments,
    finish,
    interleave,
    quartiles,
    ratio,
    start,
    table,
)
from torch.nn import functional as F

from sora import models


class Textbook:
    """SORA as a published training script would write it."""

    def __init__(self, width: int, batch: int) -> None:
        self.model = models.create("preactresnet18", 10, width=width)  # normalisation happens to the data
        self.model.train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        self.std = torch.tensor(STD).view(1, 3, 1, 1)
        mean = torch.tensor(MEAN).view(1, 3, 1, 1)
        self.lower, self.upper = (0 - mean) / self.std, (1 - mean) / self.std
        self.eps, self.alpha0, self.alpha_max = EPS / self.std, 0.02, 2 * EPS
        self.v, self.alpha = 0.99, 2 * EPS
        self.x = (torch.rand(batch, 3, 32, 32) - mean) / self.std
        self.y = torch.randint(0, 10, (batch,))
        self.log: list[tuple[float, ...]] = []

    def step(self) -> None:
        """One batch."""
        x, y = self.x, self.y
        eta = (torch.rand_like(x) * 2 - 1) * self.eps
        start = (x + eta).clone().detach().requires_grad_(True)
        loss = F.cross_entropy(self.model(start), y)
        loss.backward()
        g = start.grad.detach().clone()
        steps = torch.rand_like(x) * self.alpha / self.std
        x_adv = torch.max(torch.min(start.detach() + steps * g.sign(), self.upper), self.lower)
        x_adv = x_adv.clone().detach().requires_grad_(True)
        self.optimizer.zero_grad()
        logits = self.model(x_adv)
        loss = F.cross_entropy(logits, y)
        loss.backward()
        self.optimizer.step()
        g, g_adv = g.flatten(1), x_adv.grad.detach().flatten(1)
        aligned = F.cosine_similarity(g, g_adv).mean().item()
        c = ((g.sign() * g_adv).sum(1) / g.abs().sum(1)).mean().clamp(-1, 1).item()
        self.alpha = min(self.alpha_max, self.alpha0 / max(1 - self.v, 1e-12))
        self.v = 0.95 * self.v + 0.05 * c
        accuracy = (logits.argmax(1) == y).float().mean().item()
        self.log.append((loss.item(), accuracy, aligned, c))


def candidate(name: str, width: int, batch: int) -> Call:
    if name == "textbook":
        return Textbook(width, batch).step
    trainer = Trainer.build(width, batch)
    return trainer.step_of(trainer.method("sora"))


def in_own_process(name: str, args: Any) -> float:
    """Median seconds of one side in a fresh process."""
    flags = [f"--{key}={getattr(args, key)}" for key in ("width", "batch", "rounds", "threads", "clock")]
    command = [sys.executable, __file__, *flags, f"--only={name}"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = arguments(__doc__, width=16, batch=128, rounds=11, processes=3)
    parser.add_argument(
        "--only", choices=("textbook", "sora"), help="time one side and print its median seconds"
    )
    known = parser.parse_args()
    if known.only == "textbook":  # with the C library's own settings
        torch.set_num_threads(known.threads)
        args = known
    else:
        args = start(parser)
    if args.only:
        call = candidate(args.only, args.width, args.batch)
        print(quartiles(interleave({args.only: call}, args.rounds, args.clock)[args.only])[1])
        return
    sides = ("textbook", "sora")
    times = interleave({n: candidate(n, args.width, args.batch) for n in sides}, args.rounds, args.clock)
    rows = [{"where": "one process, same allocator", **ratio(times, "textbook", "sora")}]
    if args.processes:
        own: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(args.processes):
            for name in sides:
                own[name].append(in_own_process(name, args))
        rows.append({"where": "own process, as each would run", **ratio(own, "textbook", "sora")})
    table(f"textbook loop over our SORA step (width {args.width}, batch {args.batch})", rows)
    finish(args, "textbook", {"width": args.width, "batch": args.batch, "times textbook/ours": rows})


if __name__ == "__main__":
    main()
