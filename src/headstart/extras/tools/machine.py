"""Where tools work: this machine, and the calls that any other has to offer as well."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from headstart.extras.tools.command import CommandLimits, Finished, run_command

LIST_LIMITS = CommandLimits(seconds=15, output_bytes=8 * 2**20)  # of one listing
# reported where they are found, never walked: they can be enormous
JUNK_FOLDERS = (
    ".git", ".svn", ".hg", "node_modules", "__pycache__", ".venv", "venv", "dist", "build",
    "target", ".cache", ".idea", ".vscode",
)  # fmt: skip
GIT_LIST = ("ls-files", "--cached", "--others", "--exclude-standard")

EntryKind = Literal["file", "dir", "all"]
Told = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class FoundPath:
    """A file or folder of a listing, its path relative to where that begins."""

    path: str
    is_folder: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """What was found, and whether that is all."""

    entries: Sequence[FoundPath]
    is_cut: bool = False


class Machine(Protocol):
    """Files and programs of one machine; paths are relative to the folder of the call."""

    folder: str
    is_remote: bool

    def resolve(self, path: str) -> str:
        """The whole path."""

    async def kind(self, path: str) -> EntryKind | None:
        """Whether it is a file or a folder, None for neither."""

    async def size(self, path: str) -> int | None:
        """Bytes of a file, None where it cannot be read."""

    async def read(self, path: str) -> bytes | None:
        """What a file holds, None where it cannot be read."""

    async def write(self, path: str, content: bytes) -> bool:
        """Write a file and the folders above it; whether that worked."""

    async def entries(self, base: str, max_depth: int, kind: EntryKind) -> Listing:
        """Files and folders below one; without those that git ignores if only files are asked."""

    async def run(
        self, arguments: Sequence[str], limits: CommandLimits, on_output: Told | None = None
    ) -> Finished:
        """Run a program in the folder of the call."""


class LocalMachine:
    """This machine, as the server's user."""

    is_remote = False

    def __init__(self, folder: str = "") -> None:
        self.folder = folder

    def resolve(self, path: str) -> str:
        """The whole path, `~` and `..` replaced."""
        whole = os.path.join(self.folder or os.getcwd(), os.path.expanduser(path))
        return os.path.normpath(whole)

    async def kind(self, path: str) -> EntryKind | None:
        """Whether it is a file or a folder, None for neither."""
        return await asyncio.to_thread(_kind, Path(self.resolve(path)))

    async def size(self, path: str) -> int | None:
        """Bytes of a file, None where it cannot be read."""
        return await asyncio.to_thread(_size, Path(self.resolve(path)))

    async def read(self, path: str) -> bytes | None:
        """What a file holds, None where it cannot be read."""
        return await asyncio.to_thread(_read, Path(self.resolve(path)))

    async def write(self, path: str, content: bytes) -> bool:
        """Write a file and the folders above it; whether that worked."""
        return await asyncio.to_thread(_write, Path(self.resolve(path)), content)

    async def entries(self, base: str, max_depth: int, kind: EntryKind) -> Listing:
        """Files and folders below one; without those that git ignores if only files are asked."""
        base = self.resolve(base)
        if kind == "file":
            listed = await run_command(("git", "-C", base, *GIT_LIST, "-z"), LIST_LIMITS)
            if listed.is_success:
                return await asyncio.to_thread(_of_git, Path(base), listed, max_depth)
        return await asyncio.to_thread(_walk, base, max_depth, kind)

    async def run(
        self, arguments: Sequence[str], limits: CommandLimits, on_output: Told | None = None
    ) -> Finished:
        """Run a program in the folder of the call."""
        return await run_command(arguments, limits, folder=self.folder, on_output=on_output)


def depth_of(path: str) -> int:
    """Folders above a relative path, itself counted."""
    return path.count("/") + 1


def _kind(path: Path) -> EntryKind | None:
    try:
        return "dir" if path.is_dir() else "file" if path.is_file() else None
    except (OSError, ValueError):
        return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except (OSError, ValueError):
        return None


def _read(path: Path) -> bytes | None:
    try:
        # a pipe or a device would be waited for
        return path.read_bytes() if path.is_file() else None
    except (OSError, ValueError):
        return None


def _write(path: Path, content: bytes) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except (OSError, ValueError):
        return False
    return True


def _of_git(base: Path, listed: Finished, max_depth: int) -> Listing:
    paths = [os.fsdecode(path) for path in listed.output.split(b"\0") if path]
    shallow = [path for path in paths if not max_depth or depth_of(path) <= max_depth]
    found = [FoundPath(path, False) for path in shallow if (base / path).is_file()]
    return Listing(found, listed.is_cut)


def _walk(base: str, max_depth: int, kind: EntryKind) -> Listing:
    """Depth first; links are never followed, they may lead back."""
    deadline = time.monotonic() + LIST_LIMITS.seconds
    found: list[FoundPath] = []
    is_cut = False
    waiting = [("", 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(os.path.join(base, folder)) as scanned:
                members = list(scanned)
        except OSError:
            is_cut = True
            continue
        if time.monotonic() > deadline:
            return Listing(found, is_cut=True)
        for one in members:
            path = f"{folder}/{one.name}" if folder else one.name
            is_folder = one.is_dir()
            if (is_folder and kind != "file") or (one.is_file() and kind != "dir"):
                found.append(FoundPath(path, is_folder))
            goes_on = is_folder and one.name not in JUNK_FOLDERS and not one.is_symlink()
            if goes_on and (not max_depth or depth + 1 < max_depth):
                waiting.append((path, depth + 1))
    return Listing(found, is_cut)
