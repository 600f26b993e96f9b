"""The machine that tools work on: this one, or one reached through docker, podman or ssh.

Files are handled by standard programs: sh, cat, head, tail, wc, mkdir, dirname, readlink, cp, mv,
rm, find, and timeout on other machines. Names of machines and paths come from clients, so neither
may be parsed as an option.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from headstart.extras.tools.command import CommandLimits, Finished, run_command
from headstart.types.errors import HeadstartError

MAX_LINES = 2**31 - 1  # accepted by every head and tail
ENGINES = ("docker", "podman")

EntryKind = Literal["file", "dir", "all"]
OnOutput = Callable[[bytes], None]
Wrap = Callable[[Sequence[str]], Sequence[str]]


class Machine:
    """Files and programs of one machine; paths are relative to the folder of the call."""

    def __init__(self, folder: str = "", wrap: Wrap | None = None) -> None:
        """`wrap` gives the command that runs another there; None: this machine."""
        self.folder = folder
        self.is_remote = wrap is not None
        self._wrap = wrap or (lambda command: command)

    def resolve(self, path: str) -> str:
        """The whole path; on this machine with `~` and `..` replaced."""
        if self.is_remote:
            return path if path.startswith("/") or not self.folder else f"{self.folder}/{path}"
        whole = os.path.join(self.folder or os.getcwd(), os.path.expanduser(path))
        return os.path.normpath(whole)

    async def kind(self, path: str) -> EntryKind | None:
        """Whether it is a file or a folder, None for neither."""
        script = '[ -d "$1" ] && echo dir || { [ -f "$1" ] && echo file; }'
        answer = (await self._script(script, path)).output.strip()
        return "dir" if answer == b"dir" else "file" if answer == b"file" else None

    async def size(self, path: str) -> int | None:
        """Size of a file in bytes, None if it cannot be read."""
        done = await self._script('[ -f "$1" ] && wc -c < "$1"', path)
        return int(done.output) if done.is_success and done.output.strip().isdigit() else None

    async def read(self, path: str) -> bytes | None:
        """The content of a file; None if it cannot be read or has more than 64 MiB."""
        done = await self._script('[ -f "$1" ] && cat -- "$1"', path, output_bytes=64 * 2**20)
        return done.output if done.is_success and not done.is_cut else None

    async def lines(self, path: str, first: int, count: int, max_bytes: int) -> bytes | None:
        """`count` lines from number `first` (1-based), cut after `max_bytes`; None if unreadable.

        Reads no further, so that a large file costs no memory.
        """
        script = (
            '[ -f "$1" ] && exec < "$1" || exit 1; '
            f"tail -n +{min(first, MAX_LINES)} | head -n {min(count, MAX_LINES)} | "
            f"head -c {max_bytes}"
        )
        done = await self._script(script, path, output_bytes=max_bytes)
        return done.output if done.is_success else None

    async def write(self, path: str, content: bytes) -> bool:
        """Write a file and the folders above it; return whether it worked.

        An old file is replaced by a whole new one, which keeps its permissions, or stays as it is.
        """
        # the length is compared because a broken connection looks like the end of the content
        script = f"""
            file=$1
            mkdir -p -- "$(dirname -- "$file")" || exit
            [ ! -L "$file" ] || file=$(readlink -f -- "$file") || exit
            [ -f "$file" ] || [ ! -e "$file" ] || exit
            if [ ! -w "$(dirname -- "$file")" ]; then  # there is room for no other file
                cat > "$file"
                exit
            fi
            new=$file.$$.new
            trap 'rm -f -- "$new"' EXIT
            [ ! -e "$file" ] || cp -p -- "$file" "$new" || exit
            cat > "$new" && [ "$(wc -c < "$new")" -eq {len(content)} ] || exit
            # a single file that a container got from outside cannot be renamed over
            mv -f -- "$new" "$file" || cat "$new" > "$file"
        """
        return (await self._script(script, path, given=content)).is_success

    async def entries(self, base: str, max_depth: int, kind: EntryKind) -> tuple[list[str], bool]:
        """Paths of files and folders below one, and whether there are more.

        A folder's path ends with a slash. If only files are asked for, those that git ignores are
        left out.
        """
        list_paths = partial(self._script, path=base, output_bytes=8 * 2**20)
        if kind == "file":
            # a repository may not name programs that git runs
            git = (
                "GIT_ALLOW_PROTOCOL= git -c core.fsmonitor=false -c safe.bareRepository=explicit "
                "ls-files -z"
            )
            # all files, `//`, then the deleted ones; each terminated by NUL
            script = (
                f'cd "$1" && {git} --cached --others --exclude-standard && '
                f'printf "//\\0" && {git} --deleted'
            )
            done = await list_paths(script)
            if done.is_success:
                names, _, deleted = done.output.partition(b"//\0")
                gone = {*_paths(deleted)}
                found = [path for path in _paths(names) if path not in gone]
                return [p for p in found if not 0 < max_depth <= p.count("/")], done.is_cut
        found, is_cut = [], False
        for is_folder in (True, False):
            if kind != ("file" if is_folder else "dir"):
                script = _find_script(max_depth, is_folder=is_folder)
                done = await list_paths(script)
                found += [path.removeprefix("./") + "/" * is_folder for path in _paths(done.output)]
                # `find` fails if a folder cannot be read
                is_cut = is_cut or done.is_cut or not done.is_success
        return found, is_cut

    async def run(
        self, arguments: Sequence[str], limits: CommandLimits, on_output: OnOutput | None = None
    ) -> Finished:
        """Run a program in the folder of the call."""
        if not self.is_remote:
            limits = replace(limits, is_supervised=True)
            return await run_command(arguments, limits, folder=self.folder, on_output=on_output)
        # The limit is set there as well: killing `docker exec` or `ssh` ends nothing there.
        inner = ["timeout", f"{limits.seconds:.0f}s", *arguments]
        if self.folder:
            move = 'cd "$1" || exit 127; shift; exec "$@"'
            inner = ["sh", "-c", move, "_", self.folder, *inner]
        # later than the limit there
        outer = replace(limits, seconds=limits.seconds + 5.0)
        return await run_command(self._wrap(inner), outer, on_output=on_output)

    async def _script(
        self, script: str, path: str, *, output_bytes: int = 4096, given: bytes = b""
    ) -> Finished:
        arguments = self._wrap(("sh", "-c", script, "_", self.resolve(path)))
        limits = CommandLimits(seconds=15, output_bytes=output_bytes)
        return await run_command(arguments, limits, given=given, merges_errors=False)


def machine_of(runtime: str, folder: str) -> Machine:
    """The machine of a runtime name; an empty name is this one.

    Raises:
        HeadstartError: there is no such runtime, or the name is not allowed; 500.
    """
    if not runtime:
        return Machine(folder)
    scheme, _, name = runtime.partition(":")
    if scheme == "ssh":
        if not re.fullmatch(r"[A-Za-z0-9._@][A-Za-z0-9._@-]*", name):
            raise HeadstartError(f"invalid ssh target: {name!r:.80}")
        # without questions to a user: keys only, and a host that is known
        options = (
            "BatchMode=yes", "PasswordAuthentication=no", "KbdInteractiveAuthentication=no",
            "StrictHostKeyChecking=yes",
        )  # fmt: skip
        ssh = ("ssh", *(word for option in options for word in ("-o", option)), name)
        return Machine(folder, lambda inner: (*ssh, shlex.join(inner)))
    engine = scheme.removesuffix("-container")
    if engine in ENGINES and scheme != engine:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise HeadstartError(f"invalid container id: {name!r:.80}")
        return Machine(folder, lambda inner: (engine, "exec", "-i", name, *inner))
    if engine in ENGINES:
        raise HeadstartError(f"a call can only use a container that runs, not {runtime!r:.80}")
    # no fallback to this machine: the client asked for another
    raise HeadstartError(f"unknown tool runtime: {runtime!r:.80}")


def _paths(output: bytes) -> list[str]:
    """Split NUL-terminated paths."""
    return [os.fsdecode(path) for path in output.split(b"\0") if path]


def _find_script(max_depth: int, *, is_folder: bool) -> str:
    depth = f" -maxdepth {max_depth}" if max_depth else ""
    # listed, but not searched: they can be enormous
    folders = (
        ".git", ".svn", ".hg", "node_modules", "__pycache__", ".venv", "venv", "dist", "build",
        "target", ".cache", ".idea", ".vscode",
    )  # fmt: skip
    junk = " -o ".join(f"-name {name}" for name in folders)
    kind = "d" if is_folder else "f"
    shown = f"\\( -type {kind} -o -type l -exec test -{kind} {{}} \\; \\) -print0"
    # a junk folder is listed and not searched
    of_junk = "-print0" if is_folder else ""
    return (
        f'cd "$1" && find . -mindepth 1{depth} -type d \\( {junk} \\) -prune {of_junk} -o {shown}'
    )
