"""Saved state of control: one JSON file, written atomically, with the models it is for.

Each class names its saved fields:

    class DraftCost:
        SAVED = ("round_ms", "catch_up_ms")

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
VERSION = 7


class StateFile:
    """A file of saved state, and the models it is for."""

    def __init__(self, path: Path, models: Mapping[str, ModelId]) -> None:
        """Read it: `state` is what it holds, `why_not` the reason if that is not usable.

        Args:
            models: by part, "target" or "draft model". Parts that only the file has are kept, and
                speculators are not compared: each has its state under its name.

        Raises:
            ConfigError: it was learned for another model.
        """
        self.path, self.state, self.why_not = path, dict[str, Any](), ""
        try:
            if path.exists() and path.stat().st_size:
                self.state = _read(path)
        except (OSError, ValueError) as error:
            self.why_not = str(error)
        known = {part: ModelId(*model) for part, model in self.state.pop("learned_for", {}).items()}
        for part, model in models.items():
            if known.get(part, model) != model:
                raise ConfigError(
                    f"--spec-state {path} was learned for the {part} {known[part]}, not for "
                    f"{model}; name another file, or remove this one to start over"
                )
        both = {**known, **models}
        # part -> [digest, name]
        self._models = {part: [model.digest, model.name] for part, model in both.items()}

    def check(self, *, replaces_others: bool = False) -> None:
        """Check that it can be written. A new one is once its models are known, so that servers of
        others refuse it.

        `replaces_others`: a file that we did not write may be replaced.

        Raises:
            OSError: it cannot, now or foreseeably later.
        """
        if self.path.exists() and not self.path.is_file():
            raise OSError(errno.EINVAL, "it is not a regular file", str(self.path))
        if not replaces_others and self.path.exists() and not _is_ours(self.path):
            reason = "it is not what headstart writes and would be replaced"
            raise OSError(errno.EINVAL, reason, str(self.path))
        folder = next(one for one in self.path.resolve().parents if one.exists())
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        for place in (self.path, folder):
            if place.exists() and not os.access(place, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
        if self._models and not self.path.exists():
            self.write({})

    def write(self, state: Mapping[str, Any]) -> None:
        """Replace it atomically: a kill or a full disk leaves either the old or the new one.

        Raises:
            OSError: it cannot be written; no other file is left behind.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = _text({**state, "learned_for": self._models})
        head = f'{{"version":{VERSION},"crc32":{crc32(text.encode())},"state":'
        replace_file(self.path, f"{head}{text}}}".encode())


def _read(path: Path) -> dict[str, Any]:
    """Read a saved state.

    Raises:
        OSError: the file is unreadable.
        ValueError: it is damaged, was edited, or has another version.
    """
    if not _is_ours(path):
        raise ValueError("it is not what headstart writes")
    try:
        file = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if (version := file["version"]) != VERSION:
        raise ValueError(
            f"its version is {version!r} but this server reads version {VERSION}; control starts "
            "over"
        )
    state = file.get("state")
    if not isinstance(state, dict) or file.get("crc32") != crc32(_text(state).encode()):
        raise ValueError("it was changed or damaged: its checksum is wrong; control starts over")
    return state


def _is_ours(path: Path) -> bool:
    """Whether a file is empty or begins as ours do; another one may be large."""
    with path.open("rb") as file:
        return file.read(11) in (b"", b'{"version":')


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
        AttributeError, LookupError, TypeError, ValueError: the state has another form.
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
