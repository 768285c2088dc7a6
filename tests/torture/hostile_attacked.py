"""Hostile files of attacked images, which `sora evaluate --adversarial` reads."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np

from tests.torture.hostile import Attack, Place, npy
from tests.torture.hostile_arrays import HEADERS
from tests.torture.hostile_runs import JSONS

FACTS = {"threat": {"norm": "linf", "given": "0.1", "box": [0, 1]}, "attacks": {"clean": {}}}


def attacked_images(place: Place) -> list[str]:
    """One array of the file is hostile: its header, its size, its numbers, or the JSON in `about`."""
    arrays = {
        "labels": np.zeros(4, int), "positions": np.arange(4), "about": np.array(json.dumps(FACTS)),
        "adversarial_clean": np.zeros((4, 1, 16, 16), "f4"),
    }  # fmt: skip
    members = {name: _npy(array) for name, array in arrays.items()}
    name = str(place.choose(*arrays))
    kind = place.choose("header", "bomb", "numbers", "about", "missing")
    if kind == "header":
        members[name] = npy(str(place.choose(*HEADERS)).replace("CANARY", str(place.canary)), bytes(768))
    elif kind == "bomb":
        members[name] = npy(
            "{'descr': '|u1', 'fortran_order': False, 'shape': (300000000,), }", bytes(3 * 10**8)
        )
    elif kind == "numbers":
        strange = (
            np.full(4, -1),
            np.full(4, np.nan),
            np.full(4, 2**63, np.uint64),
            np.array("x"),
            np.zeros(0),
        )
        members[name] = _npy(place.rng.choice(strange))
    elif kind == "about":
        members["about"] = _npy(np.array(str(place.choose(*JSONS)).replace("\x00", "?")))
    else:
        del members[name]
    path = place.work / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(f"{member}.npy", content)
    return ["evaluate", str(place.run()), "--adversarial", str(path), "--threads", "1", "--quiet"]


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


ATTACKS: list[Attack] = [attacked_images, attacked_images]
