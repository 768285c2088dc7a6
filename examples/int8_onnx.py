"""A model in int8 with ONNX Runtime, and what is left of its robustness.

    pip install 'sora-at[export]'
    sora export zoo:digits-sora --to onnx
    python examples/int8_onnx.py zoo:digits-sora

Attacked images that were made for the float model say little about another model: it must be attacked itself.
Rounding has no useful gradient, so the attack uses that of the float model for the int8 logits.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, quantize_static
from torch import Tensor, nn

import sora
from sora.runs import RunFolder


class Calibration(CalibrationDataReader):
    """Clean training images, from which the ranges of the activations are estimated."""

    def __init__(self, images: Tensor) -> None:
        self.batches: Iterator[Tensor] = iter(images.split(32))

    def get_next(self) -> dict[str, numpy.ndarray] | None:
        """Return a batch; None after the last."""
        batch = next(self.batches, None)
        return None if batch is None else {"pixels": batch.numpy()}


class Quantised(nn.Module):
    """The logits of an ONNX file, with the gradient of a model in torch."""

    def __init__(self, file: Path, model: nn.Module) -> None:
        super().__init__()
        self.session, self.model = onnxruntime.InferenceSession(file), model

    def forward(self, x: Tensor) -> Tensor:
        """Map images to the logits of the file."""
        logits = self.model(x)
        (exact,) = self.session.run(None, {"pixels": x.detach().numpy()})
        return logits + (torch.from_numpy(exact) - logits).detach()


def main(run: str, dataset: str = "digits", eps: str = "0.15", limit: int | None = None) -> dict[str, float]:
    folder, data, model = RunFolder(run).exports / "onnx", sora.data.load(dataset), sora.load(run)
    calibration = data.train.gather(torch.arange(256)).float() / 255
    small = folder / "model-int8.onnx"
    quantize_static(folder / "model.onnx", small, Calibration(calibration), per_channel=True)
    quantised = Quantised(small, model)

    stored = numpy.load(folder / "adversarial.npz")
    predicted = quantised(torch.from_numpy(stored["adversarial_pgd10"])).argmax(1).numpy()
    found = {"replayed": float((predicted == stored["labels"]).mean())}
    test = data.test if limit is None else data.test.subset(torch.arange(limit))
    before = sora.evaluate(model, test, sora.Linf(eps), ["clean", "pgd10"]).accuracy
    found |= sora.evaluate(quantised, test, sora.Linf(eps), ["clean", "pgd10"]).accuracy
    sizes = [file.stat().st_size / 1e3 for file in (folder / "model.onnx", small)]
    print(f"size            {sizes[0]:.0f} kB -> {sizes[1]:.0f} kB")
    print(f"clean           {before['clean']:.1%} -> {found['clean']:.1%}")
    print(f"pgd10, replayed {found['replayed']:.1%} (images attacked on the float model)")
    print(f"pgd10, anew     {before['pgd10']:.1%} -> {found['pgd10']:.1%}")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
