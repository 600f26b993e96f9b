"""read_file and write_file."""

from __future__ import annotations

import base64
from typing import Any

from headstart.extras.tools.machine import MAX_LINES
from headstart.extras.tools.tool import ToolError, ToolInvocation, parameters, tool

MAX_TEXT_BYTES = 16 * 1024  # of one answer: what a model can still use


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
    limit = 32 * 2**20 if call.wants_base64 else MAX_TEXT_BYTES
    if size > limit and (call.wants_base64 or last == -1):
        remedy = "" if call.wants_base64 else "; use start_line and end_line to read a part"
        raise ToolError(f"{path} has {size} bytes, more than {limit}{remedy}")
    first = max(first, 1)
    count = MAX_LINES if last == -1 else max(last - first + 1, 0)
    content = await (
        call.machine.read(path)
        if call.wants_base64
        # two bytes more than are shown, so that `_within` sees what is cut
        else call.machine.lines(path, first, count, MAX_TEXT_BYTES + 2)
    )
    if content is None:
        raise ToolError(f"cannot read {path}")
    if call.wants_base64:
        text = base64.b64encode(content).decode()
        return {"base64": text, "size_bytes": len(content)}
    chosen = _lines(content.decode("utf-8", "replace"))
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


def _lines(text: str) -> list[str]:
    """Split a text at line feeds only."""
    lines = text.split("\n")
    return lines[:-1] if not lines[-1] else lines


def _within(lines: list[str]) -> str:
    """The lines that fit an answer."""
    result, num_bytes = [], 0
    for line in lines:
        num_bytes += len(line.encode()) + 1
        if num_bytes > MAX_TEXT_BYTES:
            result.append("[output truncated]")
            break
        result.append(line + "\n")
    return "".join(result)
