"""SENet-18: pre-activation blocks whose channels are reweighted by a squeeze-and-excitation gate."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sora.models import register
from sora.models._layers import Projection, conv3x3
from sora.models.resnet import ResNet

REDUCTION = 16  # factor by which the gate's hidden layer has fewer channels


class SqueezeExciteBlock(nn.Module):
    """BN, ReLU, conv, BN, ReLU, conv, gate, plus the shortcut; a projection reads the activated input."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)
        hidden = max(1, out_channels // REDUCTION)
        self.squeeze = nn.Conv2d(out_channels, hidden, 1)
        self.excite = nn.Conv2d(hidden, out_channels, 1)
        self.shortcut: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.shortcut = Projection(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, in, H, W) to (N, out, H / stride, W / stride)."""
        out: Tensor = F.relu(self.bn1(x), inplace=True)
        if self.shortcut is not None:
            x = self.shortcut(out)
        out = self.conv1(out)
        out = self.conv2(F.relu(self.bn2(out), inplace=True))
        hidden = F.relu(self.squeeze(out.mean((2, 3), keepdim=True)), inplace=True)
        gate = torch.sigmoid(self.excite(hidden))
        return torch.addcmul(x, out, gate)


@register(
    "senet18",
    summary="SENet-18, pre-activation blocks with squeeze-and-excitation",
    paper="Hu, Shen, Sun: Squeeze-and-Excitation Networks, CVPR 2018",
)
class SENet(ResNet):
    """ResNet-18's stem, stages and head with other blocks; neither BN nor ReLU follows the last stage."""

    block = SqueezeExciteBlock
