"""PatchResNet: a pre-activation ResNet on patches of pixels, shaped for robust accuracy per second."""

import torch.nn.functional as F
from torch import Tensor, nn

from sora.errors import UserError
from sora.models import register
from sora.models._layers import average, build_stages, check_int
from sora.models.preactresnet import PreActBlock


@register(
    "patchresnet",
    summary="pre-activation ResNet on 2x2 patches: more channels on smaller maps, for short training",
    paper="this package; blocks as in He, Zhang, Ren, Sun: Identity Mappings in Deep Residual Networks, 2016",
)
class PatchResNet(nn.Module):
    """Stages of `blocks` pre-activation blocks, each stage with twice the channels of the one before.

    The stem turns each `patch` x `patch` square of pixels into one position. With 2x2 a map has a quarter of
    the positions that the other models compute first, and for the same time about twice the channels.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        image_size: int = 32,
        width: int = 64,
        stages: int = 3,
        blocks: int = 1,
        patch: int = 2,
    ) -> None:
        super().__init__()
        check_int("stages", stages, low=1, high=4)
        check_int("blocks", blocks)
        check_int("patch", patch)
        if image_size % patch:
            raise UserError(f"image_size {image_size} is not divisible by patch {patch}")
        features = width << (stages - 1)
        self.stem = nn.Conv2d(in_channels, width, patch, stride=patch, bias=False)
        self.stages = build_stages(PreActBlock, width, width, stages, blocks)
        self.norm = nn.BatchNorm2d(features)
        self.head = nn.Linear(features, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map normalised images (N, C, H, W) to logits (N, K)."""
        out = self.stages(self.stem(x))
        out = F.relu(self.norm(out), inplace=True)
        logits: Tensor = self.head(average(out))
        return logits
