"""Adversarial training of a model from timm.

    pip install timm    # installs torchvision, without which timm cannot be imported
    python examples/timm_model.py

`sora.fit` trains any module in place. A pretrained model expects normalised images, so its mean and standard
deviation, which timm knows, become its first layer: pixels stay in [0, 1] outside.
"""

import timm
import torch
from plain_loop import digits
from torch import nn

import sora


def main(name: str = "resnet10t", epochs: int = 2, pretrained: bool = False) -> sora.training.TrainResult:
    torch.manual_seed(0)
    network = timm.create_model(name, pretrained=pretrained, num_classes=10, in_chans=1)
    config = network.default_cfg
    mean, std = (sum(config[key]) / 3 for key in ("mean", "std"))  # one channel here
    model = nn.Sequential(sora.models.Normalize([mean], [std]), network)

    images, labels = digits().tensors
    pixels = (images * 255).to(torch.uint8).repeat_interleave(4, 2).repeat_interleave(4, 3)  # 32x32
    train, test = (pixels[:400], labels[:400]), (pixels[400:500], labels[400:500])
    return sora.fit(model, (train, test), method="sora", eps="0.15", epochs=epochs, lr=0.05)


if __name__ == "__main__":
    print(main())
