"""Machines that are reached through a program: a container's, or another host's by ssh.

They must be POSIX: sh, cat, wc, mkdir, dirname, find, timeout. What names them may come from a
client, so it must not be read as an option.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from headstart.extras.tools.command import CommandLimits, Finished, run_command
from headstart.extras.tools.machine import (
    GIT_LIST,
    JUNK_FOLDERS,
    LIST_LIMITS,
    EntryKind,
    FoundPath,
    Listing,
    LocalMachine,
    Machine,
    Told,
    depth_of,
)
from headstart.types.errors import HeadstartError

READ_LIMITS = CommandLimits(seconds=15, output_bytes=64 * 2**20)
SHORT_LIMITS = CommandLimits(seconds=15, output_bytes=4096)
GRACE_SECONDS = 5.0  # in which the time limit within the isolate comes first
ENGINES = ("docker", "podman")
# there is nobody to answer a question: keys only, and a host that is known
SSH = (
    "ssh", "-o", "BatchMode=yes", "-o", "PasswordAuthentication=no",
    "-o", "KbdInteractiveAuthentication=no", "-o", "StrictHostKeyChecking=yes",
)  # fmt: skip

Wrap = Callable[[Sequence[str]], Sequence[str]]


class RuntimeNameError(HeadstartError):
    """What names a tool's runtime is none, or not one that may be used."""


class Isolate:
    """A machine behind a program that runs commands there."""

    is_remote = True

    def __init__(self, wrap: Wrap, folder: str = "") -> None:
        self._wrap = wrap
        self.folder = folder

    def resolve(self, path: str) -> str:
        """The path below the folder of the call; unchanged without one."""
        return path if path.startswith("/") or not self.folder else f"{self.folder}/{path}"

    async def kind(self, path: str) -> EntryKind | None:
        """Whether it is a file or a folder, None for neither."""
        script = '[ -d "$1" ] && echo dir || { [ -f "$1" ] && echo file; }'
        answer = (await self._script(script, path)).output.strip()
        return "dir" if answer == b"dir" else "file" if answer == b"file" else None

    async def size(self, path: str) -> int | None:
        """Bytes of a file, None where it cannot be read."""
        told = await self._script('wc -c < "$1"', path)
        return int(told.output) if told.is_success and told.output.strip().isdigit() else None

    async def read(self, path: str) -> bytes | None:
        """What a file holds, None where it cannot be read."""
        arguments = self._wrap(("cat", "--", self.resolve(path)))
        told = await run_command(arguments, READ_LIMITS, merges_errors=False)
        return told.output if told.is_success else None

    async def write(self, path: str, content: bytes) -> bool:
        """Write a file and the folders above it; whether that worked."""
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1"'
        arguments = self._wrap(("sh", "-c", script, "_", self.resolve(path)))
        return (await run_command(arguments, SHORT_LIMITS, given=content)).is_success

    async def entries(self, base: str, max_depth: int, kind: EntryKind) -> Listing:
        """Files and folders below one; without those that git ignores if only files are asked."""
        if kind == "file":
            script = f'cd "$1" && git {shlex.join(GIT_LIST)}'
            told = await self._script(script, base, LIST_LIMITS)
            if told.is_success:
                paths = [path for path in _lines(told) if path]
                shallow = [path for path in paths if not max_depth or depth_of(path) <= max_depth]
                return Listing([FoundPath(path, False) for path in shallow], told.is_cut)
        found: list[FoundPath] = []
        is_cut = False
        for is_folder in (True, False):
            if kind != ("file" if is_folder else "dir"):
                script = _find_script(max_depth, is_folder=is_folder)
                told = await self._script(script, base, LIST_LIMITS)
                found += [FoundPath(path.removeprefix("./"), is_folder) for path in _lines(told)]
                is_cut = is_cut or told.has_timed_out or told.is_cut
        return Listing(found, is_cut)

    async def run(
        self, arguments: Sequence[str], limits: CommandLimits, on_output: Told | None = None
    ) -> Finished:
        """Run a program in the folder of the call, with its time limit there: what is killed here
        is only the way to it.
        """
        inner = ["timeout", f"{limits.seconds:.0f}s", *arguments]
        if self.folder:
            move = 'cd "$1" || exit 127; shift; exec "$@"'
            inner = ["sh", "-c", move, "_", self.folder, *inner]
        outer = CommandLimits(
            seconds=limits.seconds + GRACE_SECONDS, output_bytes=limits.output_bytes
        )
        return await run_command(self._wrap(inner), outer, on_output=on_output)

    async def _script(
        self, script: str, path: str, limits: CommandLimits = SHORT_LIMITS
    ) -> Finished:
        arguments = self._wrap(("sh", "-c", script, "_", self.resolve(path)))
        return await run_command(arguments, limits, merges_errors=False)


def machine_of(runtime: str, folder: str) -> Machine:
    """Where a call works; an empty name is this machine.

    Raises:
        RuntimeNameError: there is no such runtime, or it may not be named so.
    """
    if not runtime:
        return LocalMachine(folder)
    scheme, _, name = runtime.partition(":")
    if scheme == "ssh":
        if not re.fullmatch(r"[A-Za-z0-9._@][A-Za-z0-9._@-]*", name):
            raise RuntimeNameError(f"invalid ssh target: {name!r:.80}")
        return Isolate(lambda inner: (*SSH, name, shlex.join(inner)), folder)
    engine = scheme.removesuffix("-container")
    if engine in ENGINES and scheme != engine:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise RuntimeNameError(f"invalid container id: {name!r:.80}")
        return Isolate(lambda inner: (engine, "exec", "-i", name, *inner), folder)
    if engine in ENGINES:
        raise RuntimeNameError(f"a call can only use a container that runs, not {runtime!r:.80}")
    # never this machine instead: the client asked for another
    raise RuntimeNameError(f"unknown tool runtime: {runtime!r:.80}")


def _lines(told: Finished) -> list[str]:
    return told.output.decode("utf-8", "surrogateescape").splitlines()


def _find_script(max_depth: int, *, is_folder: bool) -> str:
    depth = f" -maxdepth {max_depth}" if max_depth else ""
    junk = " -o ".join(f"-name {name}" for name in JUNK_FOLDERS)
    # a junk folder is shown and not walked
    shown = "-print -o -type d -print" if is_folder else "-o -type f -print"
    return f'cd "$1" && find . -mindepth 1{depth} -type d \\( {junk} \\) -prune {shown}'
