"""SORA and the guard in a Lightning module.

    pip install 'sora-at[examples]'
    python examples/lightning_module.py

The method fills `.grad` itself, so the module uses Lightning's manual optimisation.
"""

from typing import Any

import lightning.pytorch as pl
import torch
from plain_loop import digits
from torch import Tensor
from torch.utils.data import DataLoader

import sora


class Robust(pl.LightningModule):
    """A classifier trained by any of sora's methods, stopped by the guard."""

    def __init__(self, method: str = "sora", eps: float = 0.15, guard: sora.Guard | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = sora.models.create("preactresnet18", 10, in_channels=1, image_size=8, width=16, stages=2)
        self.method = sora.methods.create(method, sora.Linf(eps))  # a module: its buffers move and are saved
        self.guard = guard or sora.Guard()
        self.pending: list[Tensor] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """One batch: both passes, the update, and every ten batches the guard."""
        optimizer: Any = self.optimizers()
        out = self.method.step(self.model, *batch)
        optimizer.step()
        optimizer.zero_grad()
        self.log_dict({"loss": out.loss, "pert_align": out.pert_align}, prog_bar=True)
        self.pending.append(out.pert_align)
        if len(self.pending) == 10:
            self._update_guard()

    def _update_guard(self) -> None:
        for value in torch.stack(self.pending).tolist():
            if self.guard.update(value) == "alarm":
                self.print(f"alarm at step {self.global_step}: PertAlign average {self.guard.average:.2f}")
                self.trainer.should_stop = True
        self.pending.clear()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the state of the guard."""
        checkpoint["guard"] = self.guard.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the state of the guard."""
        self.guard.load_state_dict(checkpoint["guard"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Any optimiser works."""
        return torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


def main(epochs: int = 10, method: str = "sora", **trainer: Any) -> Robust:
    pl.seed_everything(0)
    module = Robust(method)
    loader = DataLoader(digits(), batch_size=128, shuffle=True)
    pl.Trainer(max_epochs=epochs, logger=False, enable_checkpointing=False, **trainer).fit(module, loader)
    return module


if __name__ == "__main__":
    main()
