"""The share of the machine's measured sgemm rate that a SORA step reaches, and what takes the rest.

A step is counted as 2 forward, 2 input-gradient and 1 weight-gradient passes, each as expensive as a forward.

python benchmarks/floor.py [--width 64] [--batch 128] [--rounds 5] [--threads 1 --clock cpu]
"""

from collections import Counter

import torch
from _timing import Call, Trainer, arguments, finish, interleave, quartiles, start, table
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

PASSES = 5
SIDE = 2048
KINDS = {
    "mkldnn_convolution": "convolution, forward",
    "convolution_backward": "convolution, backward",
    "native_batch_norm": "batch norm, forward",
    "native_batch_norm_backward": "batch norm, backward",
    "threshold_backward": "ReLU",
    "clamp_min_": "ReLU",
    "add_": "additions",
    "copy_": "copies",
    "_fused_sgd_": "optimiser",
}


def flops_of_a_forward(trainer: Trainer) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        trainer.model(trainer.x)
    return int(counter.get_total_flops())


def shares(step: Call) -> list[dict[str, object]]:
    """Where a step's time goes, by kind of operation."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
    spent: Counter[str] = Counter()
    for event in found.key_averages():
        spent[KINDS.get(event.key.removeprefix("aten::"), "everything else")] += event.self_cpu_time_total
    total = sum(spent.values())
    return [{"operation": kind, "share": micro / total} for kind, micro in spent.most_common()]


def main() -> None:
    args = start(arguments(__doc__, width=64, batch=128, rounds=5))
    trainer = Trainer.build(args.width, args.batch)
    work = PASSES * flops_of_a_forward(trainer)
    a, b = torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)
    step = trainer.step_of(trainer.method("sora"))
    times = interleave({"sgemm": lambda: a @ b, "sora": step}, args.rounds, args.clock)
    # Both at their best: the floor is what the machine can do, not what it did beside others' load.
    sgemm, ours = 2 * SIDE**3 / min(times["sgemm"]), work / min(times["sora"])
    rows = [
        {"what": "sgemm", "ms": 1e3 * quartiles(times["sgemm"])[1], "GFLOP/s at best": sgemm / 1e9},
        {"what": "sora step", "ms": 1e3 * quartiles(times["sora"])[1], "GFLOP/s at best": ours / 1e9},
    ]
    split = shares(step)
    table(f"floor (width {args.width}, batch {args.batch}): {ours / sgemm:.1%} of sgemm", rows)
    table("where the step's time goes", split)
    sizes = {"width": args.width, "batch": args.batch}
    finish(args, "floor", sizes | {"share of sgemm": ours / sgemm, "rates": rows, "split": split})


if __name__ == "__main__":
    main()
