"""Replaces a file atomically: readers and crashes see either the old one or the new one."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path


def replace_file(path: Path, *pieces: bytes | bytearray | memoryview) -> None:
    """Write a file in place of `path`."""
    with replacement(path) as temporary, open(temporary, "wb") as file:
        file.writelines(pieces)


@contextlib.contextmanager
def replacement(path: Path, *, is_flushed: bool = True) -> Iterator[Path]:
    """A temporary file next to `path`: at the end of the block it is flushed to the disk, if that
    is wanted, and renamed to `path`, unless there was an exception.

    Follows links; the permissions are kept.
    """
    path = path.resolve()
    # random: a process in another container may have the same id
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        yield temporary
        if is_flushed:
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if is_flushed:  # make the rename durable
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """$HEADSTART_CACHE, or `headstart` in the user's cache folder."""
    if base := environment.get("HEADSTART_CACHE"):
        return Path(base)
    return Path(environment.get("XDG_CACHE_HOME") or home_folder() / ".cache") / "headstart"


def home_folder() -> Path:
    """The user's home; for a user without one a path below which nothing can be made."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.devnull)
