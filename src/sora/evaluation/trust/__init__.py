"""Masking tests: signs that attacks fail on a model for reasons other than robustness, one function each."""

from __future__ import annotations

import zlib

import torch
from torch import nn

from sora._checks import check_model
from sora._passes import bare, frozen, seeded
from sora._seeds import mix
from sora.evaluation.examples import Examples
from sora.evaluation.finding import Finding
from sora.evaluation.trust.forward import evaluation_mode, other_batch, repeated_pass
from sora.evaluation.trust.gradients import more_steps, rising_loss, single_step, zero_gradients
from sora.evaluation.trust.measurements import Measurements
from sora.evaluation.trust.strength import large_eps, noise, second_model, smoothed_transfer, square
from sora.threat import Threat

__all__ = ["TESTS", "Finding", "masking_tests"]

TESTS = (
    evaluation_mode,
    repeated_pass,
    other_batch,
    zero_gradients,
    rising_loss,
    more_steps,
    single_step,
    large_eps,
    noise,
    square,
    smoothed_transfer,
)
"""Each takes the shared measurements and returns one finding; `second_model` follows them."""


def masking_tests(
    model: nn.Module,
    examples: Examples,
    threat: Threat,
    device: torch.device,
    *,
    batch_size: int,
    seed: int = 0,
    source: nn.Module | None = None,
) -> list[Finding]:
    """All tests on a model, in evaluation mode and in the order they are printed.

    Args:
        model: From inputs to logits; left unchanged.
        examples: Inputs and labels; at most 512 evenly spaced ones are used.
        threat: The norm ball and the box.
        device: Where to compute.
        batch_size: Images passed together.
        seed: Seed of all random numbers; torch's global generator is left unchanged.
        source: A second model of the same inputs and classes, to transfer attacks from.
    """
    model = bare(model)
    with frozen(model), seeded(mix(seed, zlib.crc32(b"trust"))):
        measured = Measurements(model, examples, threat, device, batch_size)
        findings = [test(measured) for test in TESTS]
        if source is None:
            return [*findings, second_model(measured, None)]
        check_model(source)
        source = bare(source).to(device)
        with frozen(source):
            return [*findings, second_model(measured, source)]
