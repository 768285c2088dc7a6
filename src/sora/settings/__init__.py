"""Settings of a run: typed and grouped, from recipes, files and flags, each value with its origin."""

from sora.settings.fields import GIVEN, GROUPS, MAY_CHANGE, Settings, is_custom, is_given
from sora.settings.files import GRID_CONFIG, data_dir_of_run, read_config_file
from sora.settings.resolve import Request, Resolved, differences

__all__ = [
    "GIVEN",
    "GRID_CONFIG",
    "GROUPS",
    "MAY_CHANGE",
    "Request",
    "Resolved",
    "Settings",
    "data_dir_of_run",
    "differences",
    "is_custom",
    "is_given",
    "read_config_file",
]
