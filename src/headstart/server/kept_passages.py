"""The passages of the texts that drafts may be copied from, as far as they were read, by tenant."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from headstart.structures.passages import PassageSet

MAX_NAMESPACES = 64  # whose passages are kept


@dataclass(slots=True)
class ReadTexts:
    """What was read of one namespace's texts so far."""

    passages: PassageSet = field(default_factory=PassageSet)
    places: tuple[int, ...] = ()  # up to where each of its indexes was read
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class CorpusReader:
    """The texts of all namespaces that were asked for, the one asked for last at the end."""

    texts: OrderedDict[str, ReadTexts] = field(default_factory=OrderedDict)

    def of(self, namespace: str) -> ReadTexts:
        """Those of one; another is forgotten if there are too many."""
        found = self.texts.setdefault(namespace, ReadTexts())
        self.texts.move_to_end(namespace)
        if len(self.texts) > MAX_NAMESPACES:
            self.texts.popitem(last=False)
        return found
