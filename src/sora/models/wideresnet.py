"""WideResNet-28-10: few, wide pre-activation groups with dropout between the convolutions."""

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from sora.errors import UserError
from sora.models import register
from sora.models._layers import average, build_stages, check_int, conv3x3
from sora.models.preactresnet import PreActBlock

STEM = 16
GROUPS = 3
PAPER_WIDTH = 10 * STEM


@register(
    "wideresnet28-10",
    summary="WideResNet-28-10, 36 million parameters",
    paper="Zagoruyko, Komodakis: Wide Residual Networks, BMVC 2016",
)
class WideResNet(nn.Module):
    """WideResNet of three groups, the first with `width` channels, each further one with twice as many.

    The stem has 16, or `width` if that is less; `depth` is 6 n + 4 for n blocks per group. The paper's factor
    `widen` sets `width` to 16 * `widen`; `dropout` is applied between a block's two convolutions.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        width: int = PAPER_WIDTH,
        depth: int = 28,
        widen: int | None = None,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        check_int("depth", depth, low=10)
        if (depth - 4) % 6:
            raise UserError(f"depth must be 6 n + 4 (10, 16, 22, 28, 34, ...), not {depth}")
        if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
            raise UserError(f"dropout must be a number at least 0 and below 1, not {dropout!r}")
        if widen is not None:
            check_int("widen", widen)
            if width not in (PAPER_WIDTH, STEM * widen):
                raise UserError(f"width {width} and widen {widen} disagree: width is {STEM} * widen")
            width = STEM * widen
        stem = min(STEM, width)
        features = width << (GROUPS - 1)
        self.stem = conv3x3(in_channels, stem)
        block = partial(PreActBlock, shortcut_input="activated", dropout=dropout)
        self.stages = build_stages(block, stem, width, GROUPS, blocks=(depth - 4) // 6)
        self.norm = nn.BatchNorm2d(features)
        self.head = nn.Linear(features, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map normalised images (N, C, H, W) to logits (N, K)."""
        out: Tensor = self.stages(self.stem(x))
        out = F.relu(self.norm(out), inplace=True)
        logits: Tensor = self.head(average(out))
        return logits
