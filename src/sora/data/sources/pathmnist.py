"""`pathmnist`: tissue types in colon pathology, from MedMNIST."""

from __future__ import annotations

from sora.data.sources._medmnist import register_medmnist

register_medmnist(
    "pathmnist",
    summary="PathMNIST, colon pathology, 28x28 colour, 9 classes",
    classes=(
        "adipose",
        "background",
        "debris",
        "lymphocytes",
        "mucus",
        "smooth muscle",
        "normal colon mucosa",
        "cancer-associated stroma",
        "colorectal adenocarcinoma epithelium",
    ),
    md5="a8b06965200029087d5bd730944a56c1",
    train=89_996,
    val=10_004,
    test=7_180,
)
