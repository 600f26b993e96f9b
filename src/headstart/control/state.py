"""Saved state of control: one JSON file, written atomically, with the models it is for.

Each class names its saved fields:

    class DraftCost:
        SAVED = ("round_ms", "_age")

    encode(cost)            plain values for JSON; a leading underscore is not written
    restore(cost, state)    takes them over; other fields stay as the class made them

Single values are not checked, because the file has a checksum.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from headstart.structures.atomic import replace_file
from headstart.structures.model_id import ModelId
from headstart.types.errors import ConfigError

# Increase it if a saved field changes its meaning, or counts their buckets.
VERSION = 6
LEARNED_FOR = "learned_for"  # the key of the models: part -> [digest, name]


def why_unusable(path: Path, models: Mapping[str, ModelId]) -> str | None:
    """None if the file has state for these models, otherwise the reason; "" if nothing was learned
    yet.

    Args:
        models: by part, "target" or "draft model". Parts that only the file has are ignored,
            and speculators are not compared: each has its state under its name.

    Raises:
        ConfigError: it was learned for another model.
    """
    state, reason = _read_ours(path)
    known = _models(state)
    for part, model in models.items():
        if known.get(part, model) != model:
            raise ConfigError(
                f"--spec-state {path} was learned for the {part} {known[part]}, not for {model}; "
                "name another file, "
                "or remove this one to start over"
            )
    return reason


def claim_state(path: Path, models: Mapping[str, ModelId]) -> None:
    """Record in the file which models it is for; its other contents are kept.

    Raises:
        OSError: it cannot be written, now or foreseeably later.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    for place in (path, path.resolve().parent) if path.exists() else ():
        if not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
    state, _ = _read_ours(path)
    known = _models(state)
    both = {**known, **models}
    if both != known:
        write_state(
            path, {**state, LEARNED_FOR: {part: [m.digest, m.name] for part, m in both.items()}}
        )


def _read_ours(path: Path) -> tuple[dict[str, Any], str | None]:
    """The file's state and None; or a state without contents (perhaps with its models), and why."""
    try:
        if not path.exists() or not path.stat().st_size:
            return {}, ""
        state = read_state(path)
    except (OSError, ValueError) as error:
        return {}, str(error)
    return state, None if state.keys() - {LEARNED_FOR} else ""


def _models(state: Mapping[str, Any]) -> dict[str, ModelId]:
    """The models a state was learned for."""
    return {part: ModelId(*model) for part, model in state.get(LEARNED_FOR, {}).items()}


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Replace the file atomically, so that a kill or a full disk leaves either the old or the new
    one.

    Its models are kept: the caller need not know them.

    Raises:
        OSError: it cannot be written; no other file is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if LEARNED_FOR not in state:
        state = {**state, LEARNED_FOR: _read_ours(path)[0].get(LEARNED_FOR, {})}
    text = _text(state)
    head = f'{{"version":{VERSION},"crc32":{crc32(text.encode())},"state":'
    replace_file(path, f"{head}{text}}}".encode())


def read_state(path: Path) -> dict[str, Any]:
    """Read a saved state.

    Raises:
        OSError: the file is missing or unreadable.
        ValueError: it is damaged, was edited, or has another version.
    """
    try:
        file = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    version = file.get("version") if isinstance(file, dict) else None
    if version != VERSION:
        raise ValueError(
            f"its version is {version!r} but this server reads version {VERSION}; control begins "
            "anew"
        )
    state = file.get("state")
    if not isinstance(state, dict) or file.get("crc32") != crc32(_text(state).encode()):
        raise ValueError("it was changed or damaged: its checksum is wrong; control starts over")
    return state


def _text(state: Mapping[str, Any]) -> str:
    return json.dumps(state, separators=(",", ":"))


def encode(value: Any) -> Any:
    """Plain JSON values of numbers, lists, tables, and objects that name their fields."""
    if isinstance(value, dict):
        return [[key, encode(one)] for key, one in value.items()]  # keys may be numbers
    if not hasattr(value, "SAVED"):
        return value
    return {name.lstrip("_"): encode(getattr(value, name)) for name in value.SAVED}


def restore(value: Any, state: Any) -> None:
    """Set the saved fields. A table of objects must be a `defaultdict` of them.

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
