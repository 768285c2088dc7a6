"""Settings of a run: typed and grouped, from recipes, files and flags, each value with its origin.

Names are imported when first used (PEP 562), so that the help of verbs with settings does not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from sora.settings.groups import GROUPS

if TYPE_CHECKING:
    from sora.settings.fields import GIVEN, MAY_CHANGE, Settings, is_custom, is_given
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


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in ("fields", "files", "resolve"):
            if hasattr(found := importlib.import_module(f"sora.settings.{module}"), name):
                return getattr(found, name)
    raise AttributeError(f"module 'sora.settings' has no attribute {name!r}")
