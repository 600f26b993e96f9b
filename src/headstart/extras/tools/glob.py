"""Path patterns as llama-server reads them: ** any text, * and ? within a name, [abc] and [!abc].

Matched in time that grows with pattern times path, whatever the pattern: it comes from a model.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from functools import lru_cache


def matches(pattern: str, path: str) -> bool:
    """Whether a relative path fits; a pattern without a slash is about its name alone."""
    if "/" not in pattern:
        path = path.rpartition("/")[2]
    elif not pattern.startswith(("**/", "/")):
        pattern = f"**/{pattern}"
    accepts, stars = _read(pattern)
    places = {0}  # all that the path may have reached in the pattern
    for character in path:
        stay = ("**",) if character == "/" else ("*", "**")
        places = {place for place in places if stars[place] in stay} | {
            place + 1 for place in places if place < len(accepts) and accepts[place](character)
        }
    return len(accepts) in places


@lru_cache(maxsize=64)
def _read(pattern: str) -> tuple[list[Callable[[str], object]], list[str]]:
    """What accepts each character, and the stars before each of them and at the end."""
    accepts, stars = list[Callable[[str], object]](), [""]
    for part in re.findall(r"\*\*|\[[\]-]?[^\]]*\]|.", pattern, re.DOTALL):
        if part in ("*", "**"):
            stars[-1] = max(stars[-1], part)
            continue
        stars.append("")
        if part == "?":
            accepts.append("/".__ne__)
        elif len(part) > 1:
            accepts.append(re.compile(fnmatch.translate(part)).match)
        else:
            accepts.append(part.__eq__)
    return accepts, stars
