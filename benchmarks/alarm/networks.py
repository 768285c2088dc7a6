"""Small networks of the corpus: with BatchNorm, and without any normalisation of features."""

from torch import nn

CHANNELS = (16, 32, 64)
STRIDES = (1, 2, 2)


def convnet(batch_norm: bool, classes: int = 10) -> nn.Sequential:
    """Three 3x3 convolutions, a mean over each quarter of the image and a linear layer."""
    layers: list[nn.Module] = []
    channels = 1
    for width, stride in zip(CHANNELS, STRIDES, strict=True):
        layers.append(nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=not batch_norm))
        layers += [nn.BatchNorm2d(width), nn.ReLU()] if batch_norm else [nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, classes))
