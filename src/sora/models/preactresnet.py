"""PreActResNet-18: residual blocks that normalise and activate before each convolution."""

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from sora.errors import unknown
from sora.models import register
from sora.models._layers import Projection, average, build_stages, check_int, conv3x3


class PreActBlock(nn.Module):
    """BN, ReLU, conv, BN, ReLU, dropout, conv, plus the shortcut; nothing after the sum.

    A shortcut that changes shape reads the raw block input, as in the authors' code of the fast
    adversarial training papers; He et al., WideResNet and many CIFAR versions feed it the activated input.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        shortcut_input: str = "raw",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.conv2 = conv3x3(out_channels, out_channels)
        self.shortcut: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.shortcut = Projection(in_channels, out_channels, stride)
        self.raw = shortcut_input == "raw"

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, out, H / stride, W / stride)."""
        out: Tensor = F.relu(self.bn1(x), inplace=True)
        if self.shortcut is not None:
            x = self.shortcut(x if self.raw else out)
        out = self.conv1(out)
        out = self.conv2(self.dropout(F.relu(self.bn2(out), inplace=True)))
        return out.add_(x)


@register(
    "preactresnet18",
    summary="pre-activation ResNet-18, the paper's main model",
    paper="He, Zhang, Ren, Sun: Identity Mappings in Deep Residual Networks, ECCV 2016",
)
class PreActResNet(nn.Module):
    """PreActResNet-18 with a 3x3 stem and 1 to 4 stages, each with twice the channels of the one before.

    A shortcut that changes shape reads the block's "raw" or its "activated" input.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        width: int = 64,
        stages: int = 4,
        shortcut_input: str = "raw",
    ) -> None:
        super().__init__()
        check_int("stages", stages, low=1, high=4)
        if shortcut_input not in (allowed := ["raw", "activated"]):
            raise unknown("shortcut_input", str(shortcut_input), allowed)
        features = width << (stages - 1)
        self.stem = conv3x3(in_channels, width)
        self.stages = build_stages(partial(PreActBlock, shortcut_input=shortcut_input), width, width, stages)
        self.norm = nn.BatchNorm2d(features)
        self.head = nn.Linear(features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map normalised images (N, C, H, W) to logits (N, K)."""
        out = self.stages(self.stem(x))
        out = F.relu(self.norm(out), inplace=True)
        logits: Tensor = self.head(average(out))
        return logits
