"""read_file, write_file, and edit_file: exact replacements, all found in the text as it was.

Where a text is not found exactly it is looked for once more with other white space at the ends of
lines and other quotes, dashes and spaces; lines that no edit touches stay as they are.
"""

from __future__ import annotations

import asyncio
import base64
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from headstart.extras.tools.machine import MAX_LINES
from headstart.extras.tools.tool import (
    MAX_ANSWER_BYTES,
    ToolError,
    ToolInvocation,
    parameters,
    tool,
)


@tool(
    title="Read file",
    description="Read the contents of a file. Optionally specify a 1-based line range. If "
    'append_loc is true, each line is prefixed with its line number (e.g. "1→...").',
    parameters=parameters(
        ("path",),
        path=("string", "Path to the file"),
        start_line=("integer", "First line to read, 1-based (default: 1)"),
        end_line=("integer", "Last line to read, 1-based inclusive (default: end of file)"),
        append_loc=("boolean", "Prefix each line with its line number"),
    ),
)
async def read_file(call: ToolInvocation) -> dict[str, Any]:
    """Read lines of a text file, or a whole file in Base64 if the client asks for it."""
    path = call.text("path")
    first, last = call.number("start_line", 1), call.number("end_line", -1)
    size = await call.machine.size(path)
    if size is None:
        raise ToolError(f"cannot read {path}: there is no such file")
    limit = 32 * 2**20 if call.wants_base64 else MAX_ANSWER_BYTES
    if size > limit and (call.wants_base64 or last == -1):
        remedy = "" if call.wants_base64 else "; use start_line and end_line to read a part"
        raise ToolError(f"{path} has {size} bytes, more than {limit}{remedy}")
    first = max(first, 1)
    count = MAX_LINES if last == -1 else max(last - first + 1, 0)
    content = await (
        call.machine.read(path)
        if call.wants_base64
        # two bytes more than are shown, so that `_within` sees what is cut
        else call.machine.lines(path, first, count, MAX_ANSWER_BYTES + 2)
    )
    if content is None:
        raise ToolError(f"cannot read {path}")
    if call.wants_base64:
        text = base64.b64encode(content).decode()
        return {"base64": text, "size_bytes": len(content)}
    lines = content.decode("utf-8", "replace").split("\n")
    chosen = lines[:-1] if not lines[-1] else lines
    if call.flag("append_loc"):
        chosen = [f"{number}→{line}" for number, line in enumerate(chosen, first)]
    return {"plain_text_response": _within(chosen)}


@tool(
    title="Write file",
    description="Write content to a file, creating it (including parent directories) if it "
    "does not exist. May use with edit_file for more complex edits.",
    parameters=parameters(
        ("path", "content"),
        path=("string", "Path of the file to write"),
        content=("string", "Content to write"),
    ),
    writes=True,
)
async def write_file(call: ToolInvocation) -> dict[str, Any]:
    """Write a file, and the folders above it."""
    path = call.text("path")
    content = call.text("content").encode("utf-8", "replace")
    if not await call.machine.write(path, content):
        raise ToolError(f"cannot write {path}")
    return {"result": "file written successfully", "path": path, "bytes": len(content)}


def _within(lines: list[str]) -> str:
    """The lines that fit into an answer."""
    result, num_bytes = [], 0
    for line in lines:
        num_bytes += len(line.encode()) + 1
        if num_bytes > MAX_ANSWER_BYTES:
            result.append("[output truncated]")
            break
        result.append(line + "\n")
    return "".join(result)


_PLAIN = {  # quotes, dashes and spaces that are written for the plain ones
    **dict.fromkeys(range(0x2018, 0x201C), "'"),
    **dict.fromkeys(range(0x201C, 0x2020), '"'),
    **dict.fromkeys((*range(0x2010, 0x2016), 0x2212), "-"),
    **dict.fromkeys((0xA0, *range(0x2002, 0x200B), 0x202F, 0x205F, 0x3000), " "),
}


@tool(
    title="Edit file",
    description="Edit a file using exact text replacement. Each edits[].old_text must be "
    "unique in the file and is matched against the original content, not incrementally. Merge "
    "nearby changes into one edit instead of overlapping edits. Use write_file to replace the "
    "whole file.",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Path to the file to edit"},
            "edits": {
                "type": "array",
                "description": "One or more exact text replacements to apply",
                "items": parameters(
                    ("old_text", "new_text"),
                    old_text=(
                        "string",
                        "Exact text to find; must be unique in the file and must not overlap with "
                        "other edits",
                    ),
                    new_text=("string", "Text to replace old_text with"),
                ),
            },
        },
        "required": ["path", "edits"],
    },
    writes=True,
)
async def edit_file(call: ToolInvocation) -> dict[str, Any]:
    """Replace texts of a file, each of which must occur exactly once."""
    path = call.text("path")
    edits = _read_edits(call.arguments.get("edits"))
    content = await call.machine.read(path)
    if content is None:
        raise ToolError(f"cannot read {path}, or it has more than 64 MiB")
    text = content.decode("utf-8", "surrogateescape")
    try:
        edited = await asyncio.to_thread(replace_texts, text, edits)
    except ToolError as error:
        raise ToolError(f"{error} (in {path})") from None
    if edited == text:
        raise ToolError("no changes made: the replacements produce the same content")
    if not await call.machine.write(path, edited.encode("utf-8", "surrogateescape")):
        raise ToolError(f"cannot write {path}")
    return {"result": "file edited successfully", "path": path, "edits_applied": len(edits)}


def replace_texts(text: str, edits: Sequence[tuple[str, str]]) -> str:
    """The text after all (old, new) replacements.

    Raises:
        ToolError: one is not found, found twice, or overlaps with another.
    """
    normal = normalize(text)
    olds = [normalize(old) for old, _ in edits]
    for number, ((old, _), plain) in enumerate(zip(edits, olds, strict=True)):
        count = normal.count(plain)
        if count == 0 and old not in text:
            raise ToolError(
                f"could not find edits[{number}].old_text; it must match the file's current "
                "content exactly"
            )
        if count > 1:
            raise ToolError(
                f"found {count} occurrences of edits[{number}].old_text; it must be unique"
            )
    is_exact = all(old in text for old, _ in edits)
    base, wanted = (text, [old for old, _ in edits]) if is_exact else (normal, olds)
    found = sorted(
        (base.index(old), base.index(old) + len(old), number) for number, old in enumerate(wanted)
    )
    for (_, end, one), (start, _, other) in pairwise(found):
        if end > start:
            raise ToolError(
                f"edits[{one}] and edits[{other}] overlap; merge them into one edit or choose "
                "texts that do not"
            )
    # lines that no edit touches stay those of the text
    lines, base_lines = (re.findall(r"[^\n]*\n|[^\n]+", one) for one in (text, base))
    line_starts = [0, *accumulate(map(len, base_lines))]
    for start, end, number in reversed(found):
        first, last = (bisect_right(line_starts, place) - 1 for place in (start, end - 1))
        piece, place = "".join(base_lines[first : last + 1]), start - line_starts[first]
        edited = piece[:place] + edits[number][1] + piece[place + end - start :]
        lines[first : last + 1] = base_lines[first : last + 1] = [edited]
    return "".join(lines)


def normalize(text: str) -> str:
    """Lines without white space at their ends, and with plain quotes, dashes and spaces."""
    return "\n".join(line.rstrip(" \t\r") for line in text.split("\n")).translate(_PLAIN)


def _read_edits(edits: Any) -> list[tuple[str, str]]:
    if not isinstance(edits, list) or not edits:
        raise ToolError("edits must be a list with at least one entry")
    pairs = []
    for number, edit in enumerate(edits):
        old, new = (
            edit.get(name) if isinstance(edit, dict) else None for name in ("old_text", "new_text")
        )
        if not isinstance(old, str) or not isinstance(new, str):
            raise ToolError(f"edits[{number}] must have the texts old_text and new_text")
        if not normalize(old):
            raise ToolError(f"edits[{number}].old_text must not be empty")
        pairs.append((old, new))
    return pairs
