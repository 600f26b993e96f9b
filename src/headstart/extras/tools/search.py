"""file_glob_search and grep_search."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from headstart.extras.tools import glob, grep_child
from headstart.extras.tools.command import CommandLimits, run_command
from headstart.extras.tools.machine import EntryKind
from headstart.extras.tools.tool import (
    ToolError,
    ToolInvocation,
    parameters,
    readable,
    tool,
)

MAX_RESULTS = 100
MAX_GLOB = 4096  # characters, as many as the path of a file may have
# a pattern may run forever, so it needs a process that can be killed
GREP_LIMITS = CommandLimits(seconds=20, output_bytes=4 * 2**20)
IGNORED = (
    "Automatically skips files ignored by .gitignore (when the directory is inside a git repo) "
    "and common junk directories (.git, node_modules, build, dist, etc.) otherwise. "
)


@tool(
    title="File search",
    description="Recursively search for files matching a glob pattern under a directory. "
    + IGNORED
    + 'A pattern with no "/" (e.g. "*.cpp") matches the file\'s basename at any depth. A '
    'pattern containing "/" matches the full relative path; unless already anchored with '
    '"**/" or a leading "/", it is automatically prefixed with "**/". Use type="dir" or "all" '
    'to also list directories; directory entries are suffixed with "/" in the output. Note: '
    "directory listings do not apply .gitignore filtering.",
    parameters=parameters(
        ("path",),
        path=("string", "Base directory to search in"),
        include=(
            "string",
            'Glob pattern for files to include (e.g. "*.cpp" or "src/**/*.cpp"). Default: **',
        ),
        exclude=("string", "Glob pattern for files to exclude"),
        type=("string", 'Entry type to return: "file" (default), "dir" or "all"'),
        max_depth=(
            "integer",
            "Maximum depth to descend into subdirectories (default: 0 = unlimited; 1 = direct "
            "children only)",
        ),
        limit=("integer", f"Maximum number of results to return, at most {MAX_RESULTS}"),
    ),
)
async def file_glob_search(call: ToolInvocation) -> dict[str, Any]:
    """Find files by a pattern of their paths."""
    kind, limit = call.text("type", "file"), call.number("limit", MAX_RESULTS)
    if kind not in ("file", "dir", "all"):
        raise ToolError(f'invalid type: {kind!r:.60} (must be "file", "dir" or "all")')
    if limit < 1:
        raise ToolError(f"invalid limit: {limit} (must be 1 or more)")
    base, depth = await _folder(call), max(0, call.number("max_depth", 0))
    listed, is_cut = await call.machine.entries(base, depth, cast("EntryKind", kind))
    found = await _filtered(call, listed)
    shown = found[: min(limit, MAX_RESULTS)]
    lines = [*shown, "", "---", f"Total matches: {len(found)}"]
    if len(found) > len(shown):
        lines.append(
            f"[only {len(shown)} of {len(found)} matches are shown; refine the pattern to "
            "narrow the search]"
        )
    if is_cut:
        lines.append("[the search took too long, or a directory could not be read]")
    entries = [
        {"path": readable(path.rstrip("/")), "type": "dir" if path.endswith("/") else "file"}
        for path in shown
    ]
    text = readable("\n".join(lines)) + "\n"
    return {"plain_text_response": text, "entries": entries, "base": readable(base)}


@tool(
    title="Grep search",
    description="Search for a pattern in files under a path. Returns matching lines with file "
    "paths (and, unless searching a single file, paths relative to the given directory). "
    + IGNORED
    + "include/exclude: a pattern with no '/' matches the basename at any depth; a pattern "
    "containing '/' matches the full relative path (auto-anchored with \"**/\" unless already "
    "anchored).",
    parameters=parameters(
        ("path", "pattern"),
        path=("string", "File or directory to search in"),
        pattern=(
            "string",
            "Pattern to search for (regular expression unless literal is true)",
        ),
        include=("string", "Glob pattern to filter files (default: **)"),
        exclude=("string", "Glob pattern to exclude files"),
        return_line_numbers=("boolean", "If true, include line numbers in results"),
        literal=(
            "boolean",
            "Treat pattern as a literal string instead of a regular expression",
        ),
        ignore_case=("boolean", "Case-insensitive search (default: false)"),
        context_lines=("integer", "Lines to show before and after each match (default: 0)"),
    ),
)
async def grep_search(call: ToolInvocation) -> dict[str, Any]:
    """Find lines of files by a regular expression."""
    pattern = call.text("pattern")
    task = {
        "pattern": re.escape(pattern) if call.flag("literal") else pattern,
        "ignore_case": call.flag("ignore_case"),
        "context": max(0, call.number("context_lines", 0)),
        "numbers": call.flag("return_line_numbers"),
        "max_results": MAX_RESULTS,
        "files": await _files(call),
    }
    done = await run_command(
        (sys.executable, "-I", str(Path(grep_child.__file__))),
        GREP_LIMITS,
        given=json.dumps(task).encode(),
    )
    if done.has_timed_out:
        raise ToolError(
            f"the search took more than {GREP_LIMITS.seconds:.0f} seconds; narrow path, "
            "pattern or include"
        )
    if not done.is_success:
        raise ToolError(done.text.strip()[-500:])
    return {"plain_text_response": done.text}


async def _files(call: ToolInvocation) -> list[tuple[str, str, str | None]]:
    """Display name and path of each file, and its content if it is on another machine."""
    machine, path = call.machine, call.text("path")
    if await machine.kind(path) == "file":
        named = [(path, machine.resolve(path))]
    else:
        base = await _folder(call)
        listed, _ = await machine.entries(base, 0, "file")
        named = [(path, f"{base}/{path}") for path in await _filtered(call, listed)]
    if not machine.is_remote:
        return [(name, whole, None) for name, whole in named]
    read: list[tuple[str, str, str | None]] = []
    limit = left = 64 * 2**20  # bytes fetched from another machine for one search
    for name, whole in named:
        content = await machine.read(whole)
        if content is None:
            continue
        left -= len(content)
        if left < 0:
            raise ToolError(
                f"the files hold more than {limit >> 20} MiB, all of which would be "
                "fetched; narrow path or include"
            )
        read.append((name, whole, content.decode("utf-8", "replace")))
    return read


async def _folder(call: ToolInvocation) -> str:
    """The folder to search in."""
    path = call.text("path")
    if await call.machine.kind(path) != "dir":
        raise ToolError(f"{path} does not exist or is not a directory")
    return call.machine.resolve(path)


async def _filtered(call: ToolInvocation, paths: Sequence[str]) -> list[str]:
    """The paths that the include and exclude patterns select."""
    include, exclude = call.text("include", "**"), call.text("exclude", "")
    if (longest := max(len(include), len(exclude))) > MAX_GLOB:  # read in quadratic time
        raise ToolError(f"a glob has {longest} characters, more than {MAX_GLOB}; shorten it")

    def choose() -> list[str]:
        return [
            path
            for path in paths
            if (include == "**" or glob.matches(include, path.rstrip("/")))
            and not (exclude and glob.matches(exclude, path.rstrip("/")))
        ]

    return await asyncio.to_thread(choose)
