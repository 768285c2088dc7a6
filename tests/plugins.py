"""A package of somebody else's, as if it were installed."""

from pathlib import Path


def install(folder: Path, module: str, code: str, entry_points: str) -> None:
    """Write a module and the metadata that names its entry points; `folder` belongs on the path."""
    (folder / f"{module}.py").write_text(code)
    package = folder / f"{module}-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(entry_points)
