"""ViT-Small: pre-norm transformer blocks over patches and a class token."""

import torch
from torch import Tensor, nn

from sora.errors import UserError
from sora.models import register
from sora.models._layers import check_int

EPSILON = 1e-6
MLP_RATIO = 4


class Attention(nn.Module):
    """Multi-head self-attention, scaled by one over the root of a head's width.

    Not `scaled_dot_product_attention`: its fused kernels have no second derivative, which GradAlign needs,
    and are no faster on so few tokens (within 5 % at 65 and at 257 on a CPU).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (N, T, D) to tokens (N, T, D)."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (self.scale * q @ k.transpose(2, 3)).softmax(dim=3)
        out: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return out


class TransformerBlock(nn.Module):
    """LayerNorm, attention, add; LayerNorm, two linear layers with GELU between, add."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=EPSILON)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=EPSILON)
        hidden = MLP_RATIO * width
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (N, T, D) to tokens (N, T, D)."""
        x = torch.add(x, self.attention(self.norm1(x)))
        return torch.add(x, self.mlp(self.norm2(x)))


@register(
    "vit-small",
    summary="vision transformer, patches of 4 pixels, trained from scratch",
    paper="Dosovitskiy et al.: An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale, "
    "ICLR 2021",
)
class ViT(nn.Module):
    """ViT-Small with small patches and a position embedding for exactly one image size.

    The size of the images is a multiple of that of a `patch`, the `width` (length of a token) of the
    attention `heads` per block; `depth` is the number of blocks.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        image_size: int = 32,
        width: int = 384,
        patch: int = 4,
        depth: int = 12,
        heads: int = 6,
    ) -> None:
        super().__init__()
        for what, value in {"patch": patch, "depth": depth, "heads": heads}.items():
            check_int(what, value)
        if image_size % patch:
            raise UserError(f"image_size {image_size} is not divisible by patch {patch}")
        if width % heads:
            raise UserError(f"width {width} is not divisible by heads {heads}")
        self.image_size = image_size
        tokens = 1 + (image_size // patch) ** 2
        self.embed = nn.Conv2d(in_channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.position = nn.Parameter(torch.empty(1, tokens, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.head = nn.Linear(width, num_classes)
        nn.init.trunc_normal_(self.class_token, std=0.02)
        nn.init.trunc_normal_(self.position, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map normalised images (N, C, H, W) to logits (N, K)."""
        size = self.image_size
        if x.shape[2:] != (size, size):
            raise UserError(f"this ViT expects images of {size}x{size} pixels, got {x.shape[2]}x{x.shape[3]}")
        patches = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(x.shape[0], -1, -1), patches], dim=1)
        tokens = self.blocks(tokens + self.position)
        logits: Tensor = self.head(self.norm(tokens[:, 0]))
        return logits
