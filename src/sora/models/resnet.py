"""ResNet-18 with a stem for small images: one 3x3 convolution, no pooling."""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from sora.models import register
from sora.models._layers import Projection, average, build_stages, check_int, conv3x3


class BasicBlock(nn.Module):
    """conv, BN, ReLU, conv, BN, plus the shortcut, ReLU; a shortcut that changes shape has its own BN."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            projection = Projection(in_channels, out_channels, stride)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, out, H / stride, W / stride)."""
        out: Tensor = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        return F.relu(out.add_(self.shortcut(x)), inplace=True)


@register(
    "resnet18",
    summary="ResNet-18 with a 3x3 stem",
    paper="He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR 2016",
)
class ResNet(nn.Module):
    """ResNet-18 with a 3x3 stem and 1 to 4 stages, each with twice the channels of the one before."""

    block: ClassVar[type[nn.Module]] = BasicBlock

    def __init__(self, num_classes: int, in_channels: int = 3, width: int = 64, stages: int = 4) -> None:
        super().__init__()
        check_int("stages", stages, low=1, high=4)
        self.stem = conv3x3(in_channels, width)
        self.norm = nn.BatchNorm2d(width)
        self.stages = build_stages(self.block, width, width, stages)
        self.head = nn.Linear(width << (stages - 1), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map normalised images (N, C, H, W) to logits (N, K)."""
        out: Tensor = F.relu(self.norm(self.stem(x)), inplace=True)
        out = self.stages(out)
        logits: Tensor = self.head(average(out))
        return logits
