"""One module per speculator; importing the folder registers them all.

A helper module carries its speculator's name in front of its own.

Other packages add theirs through the entry-point group `headstart.speculators`.
"""

import importlib
import pkgutil
from importlib.metadata import entry_points

from headstart.speculators.base import SPECULATORS, Speculator, register
from headstart.types.errors import ConfigError

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

for _entry in entry_points(group="headstart.speculators"):
    try:
        _entry.load()
    except Exception as error:
        raise ConfigError(
            f"the speculator {_entry.name!r} ({_entry.value}) of another package cannot be "
            "imported: "
            f"{type(error).__name__}: {error}; repair or uninstall that package"
        ) from error

__all__ = ["SPECULATORS", "Speculator", "register"]
