"""Path patterns as llama-server reads them: ** any text, * and ? within a name, [abc] and [!abc].

Matched in time that grows with pattern times path, whatever the pattern: it comes from a model.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from functools import lru_cache

Accepts = Callable[[str], object]


def matches(pattern: str, path: str) -> bool:
    """Whether a relative path fits; a pattern without a slash is about its name alone."""
    if "/" not in pattern:
        return _fits(_read(pattern), path.rpartition("/")[2])
    is_anchored = pattern.startswith(("**/", "/"))
    return _fits(_read(pattern if is_anchored else f"**/{pattern}"), path)


def _fits(parts: tuple[tuple[Accepts, bool], ...], text: str) -> bool:
    """Simulate all positions in the pattern in parallel."""
    places = _skip(parts, {0})
    for character in text:
        following = set()
        for place in places:
            if place < len(parts) and parts[place][0](character):
                following.add(place if parts[place][1] else place + 1)
        places = _skip(parts, following)
        if not places:
            return False
    return len(parts) in places


def _skip(parts: tuple[tuple[Accepts, bool], ...], places: set[int]) -> set[int]:
    """Add the places after stars, which may match nothing."""
    result = set(places)
    for place in places:
        while place < len(parts) and parts[place][1]:
            place += 1
            result.add(place)
    return result


@lru_cache(maxsize=64)
def _read(pattern: str) -> tuple[tuple[Accepts, bool], ...]:
    """The parts of the pattern: accepted characters, and whether they repeat."""
    parts: list[tuple[Accepts, bool]] = []
    for part in re.findall(r"\*\*|\[[\]-]?[^\]]*\]|.", pattern, re.DOTALL):
        if part == "**":
            parts.append((lambda character: True, True))
        elif part in ("*", "?"):
            parts.append((lambda character: character != "/", part == "*"))
        elif len(part) > 1:
            parts.append((re.compile(fnmatch.translate(part)).match, False))
        else:
            parts.append((part.__eq__, False))
    return tuple(parts)
