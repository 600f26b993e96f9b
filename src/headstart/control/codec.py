"""What control saves and loads: each class names the fields that are kept.

    class DraftCost:
        SAVED = ("round_ms", "_age")

    encode(cost)            plain values for JSON; a leading underscore is not written
    restore(cost, state)    takes them over; other fields stay as the class made them

Values are not checked one by one: the file has a checksum (`state`).
"""

from __future__ import annotations

from typing import Any


def encode(value: Any) -> Any:
    """Plain values for JSON of numbers, lists, tables, and objects that name their fields."""
    if isinstance(value, dict):
        return [[key, encode(one)] for key, one in value.items()]  # keys may be numbers
    if not hasattr(value, "SAVED"):
        return value
    return {name.lstrip("_"): encode(getattr(value, name)) for name in value.SAVED}


def restore(value: Any, state: Any) -> None:
    """Take over the fields that were saved. A table of objects is a `defaultdict` of them.

    Raises:
        KeyError: a field is missing.
    """
    for name in value.SAVED:
        saved, current = state[name.lstrip("_")], getattr(value, name)
        if hasattr(current, "SAVED"):
            restore(current, saved)
        elif isinstance(current, dict):
            for key, one in saved:
                if isinstance(one, dict):
                    restore(current[key], one)
                else:
                    current[key] = one
        else:
            setattr(value, name, saved)
