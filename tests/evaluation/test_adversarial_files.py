"""Files of attacked images that cannot be read are refused with one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sora.errors import UserError
from sora.evaluation.adversarial_files import _read


def test_every_damaged_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "adv.npz"
    np.savez_compressed(path, labels=np.arange(30), positions=np.arange(30), about=np.array("{}"))
    whole = path.read_bytes()
    refused = 0
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x80
        path.write_bytes(damaged)
        try:  # any other exception would reach the user as it is
            assert _read(path).keys() >= {"labels", "positions", "about"}
        except UserError:
            refused += 1
    assert refused > len(whole) / 4
