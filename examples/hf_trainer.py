"""SORA in the Trainer of Hugging Face transformers.

    pip install 'sora-at[examples]'
    python examples/hf_trainer.py

One method of the Trainer is replaced: the step on a batch. Logging, schedules, checkpoints and gradient
accumulation are the Trainer's own. The model gets pixels in [0, 1]; a pretrained one needs its normalisation
inside, as a first layer. Clipping, if any, applies to the gradients of the adversarial batch.
"""

from typing import Any

import torch
from plain_loop import digits
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import sora


class RobustTrainer(Trainer):
    """A Trainer that learns from adversarial examples; `method` makes them."""

    def __init__(self, *given: Any, method: sora.methods.Method, **options: Any) -> None:
        super().__init__(*given, **options)
        self.method = method.to(self.args.device)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Any = None
    ) -> Tensor:
        """Fill the gradients; the model's output has logits, which the method recognises."""
        model.train()
        inputs = self._prepare_inputs(inputs)
        share = 1 / self.args.gradient_accumulation_steps
        out = self.method.step(model, inputs["pixel_values"], inputs["labels"], loss_scale=share)
        return out.loss.detach() * share


class Dictionaries(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The digits under the names that models of transformers use."""

    def __init__(self) -> None:
        self.pairs = digits()

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x, y = self.pairs[index]
        return {"pixel_values": x, "labels": y}


def main(steps: int = 60, folder: str = "runs/hf") -> float:
    torch.manual_seed(0)
    size = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    model = ViTForImageClassification(
        ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **size)
    )
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=128,
        learning_rate=2e-3,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
    )
    method = sora.methods.create("sora", sora.Linf(0.15))
    trainer = RobustTrainer(model, arguments, train_dataset=Dictionaries(), method=method)
    return float(trainer.train().training_loss)


if __name__ == "__main__":
    main()
