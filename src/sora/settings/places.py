"""Where a file may make a run write: a path that a file names counts only inside the working directory.

Anything else must be named by the user, on the command line or as an argument. `SECURITY.md` explains it.
"""

from __future__ import annotations

from pathlib import Path

from sora import data
from sora._files import absolute
from sora.errors import UserError, short
from sora.settings.names import is_given


def check_out(out: object, origin: str) -> None:
    """Raise for a run folder outside the working directory that only a file names."""
    _check("out", out, origin, "--out")


def check_data_dir(dataset: str, data_dir: str | None, origin: str) -> None:
    """Raise if the user's own images might be packed in a folder that only a file names.

    Data sets with a name of their own are packed by `sora data get`; loading them only reads.
    """
    if data_dir is not None and not is_given(dataset) and data.info(dataset).argument:
        _check("data_dir", data_dir, origin, "--data-dir")


def data_dir_of_run(dataset: str, stored: str | None, given: str | None) -> str | None:
    """The folder to load a stored run's data set from: what the user gives, else what the run says."""
    if given is None:
        check_data_dir(dataset, stored, "the run")
    return given or stored


def _check(name: str, value: object, origin: str, flag: str) -> None:
    if not isinstance(value, str) or not value:
        return  # no path, or a mistake that the types of the settings report
    try:
        place = absolute(value)
    except UserError as error:
        raise UserError(f"{name} ({origin}): {error}") from None
    if not place.is_relative_to(Path.cwd().resolve()):
        raise UserError(
            f"{name} {short(value)} ({origin}) is outside the working directory; to write there, repeat it: "
            f"{flag} {short(value)}"
        )
