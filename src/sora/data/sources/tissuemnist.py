"""`tissuemnist`: cell types in kidney cortex, from MedMNIST."""

from __future__ import annotations

from sora.data.sources._medmnist import register_medmnist

register_medmnist(
    "tissuemnist",
    summary="TissueMNIST, kidney cortex cells, 28x28 grey, 8 classes",
    classes=(
        "Collecting Duct, Connecting Tubule",
        "Distal Convoluted Tubule",
        "Glomerular endothelial cells",
        "Interstitial endothelial cells",
        "Leukocytes",
        "Podocytes",
        "Proximal Tubule Segments",
        "Thick Ascending Limb",
    ),
    md5="ebe78ee8b05294063de985d821c1c34b",
    train=165_466,
    val=23_640,
    test=47_280,
)
