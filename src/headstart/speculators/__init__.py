"""One module per speculator; importing the folder registers them all.

A helper module has its speculator's name as prefix.

Other packages register theirs in the entry-point group `headstart.speculators`.
"""

import importlib
import pkgutil
from importlib.metadata import entry_points

from headstart.speculators.base import SPECULATORS, Speculator, register
from headstart.speculators.base_texts import TextSpeculator
from headstart.types.errors import in_words

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

NOT_IMPORTED: dict[str, str] = {}
"""Entry points that cannot be imported, and why: an error only if `--spec-type` names one."""

for _entry in entry_points(group="headstart.speculators"):
    try:
        _entry.load()
    except (Exception, SystemExit) as error:
        NOT_IMPORTED[_entry.name] = f"{_entry.value}: {in_words(error)}"

__all__ = ["NOT_IMPORTED", "SPECULATORS", "Speculator", "TextSpeculator", "register"]
