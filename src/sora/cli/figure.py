"""`sora figure`: another name of `sora probe`, for pictures in files."""

from sora.cli import probe


def run(argv: list[str]) -> int:
    """Draw one picture into files, NAME.pdf unless --out is given."""
    return probe.run(argv, "figure")
