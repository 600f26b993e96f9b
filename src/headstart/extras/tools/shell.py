"""exec_shell_command and get_info."""

from __future__ import annotations

import codecs
from typing import Any

from headstart.extras.tools.command import CommandLimits, Finished
from headstart.extras.tools.tool import (
    MAX_ANSWER_BYTES,
    ToolInvocation,
    parameters,
    readable,
    tool,
)

MAX_SECONDS = 60
INFO_LIMITS = CommandLimits(seconds=5, output_bytes=4096)


@tool(
    title="Execute shell command",
    description="Execute a shell command and return its output (stdout and stderr combined).",
    parameters=parameters(
        ("command",),
        command=("string", "Shell command to execute"),
        timeout=("integer", f"Timeout in seconds (default 10, max {MAX_SECONDS})"),
        max_output_size=(
            "integer",
            f"Maximum output size in bytes (default {MAX_ANSWER_BYTES})",
        ),
    ),
    writes=True,
    can_stream=True,
)
async def exec_shell_command(call: ToolInvocation) -> dict[str, Any]:
    """Run a shell command, with a limit of time and output."""
    limits = CommandLimits(
        seconds=max(1, min(call.number("timeout", 10), MAX_SECONDS)),
        output_bytes=max(
            0, min(call.number("max_output_size", MAX_ANSWER_BYTES), MAX_ANSWER_BYTES)
        ),
    )
    command = call.text("command")
    on_text = call.on_output
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    on_output = None if on_text is None else lambda piece: on_text(decoder.decode(piece))
    finished = await call.machine.run(("sh", "-c", command), limits, on_output)
    if on_text is not None:
        cut = "\n[output truncated]" if finished.is_cut else ""
        on_text(decoder.decode(b"", final=True) + cut + _end(finished))
    return {"plain_text_response": finished.text + _end(finished)}


@tool(
    title="Get Runtime Info",
    description="Returns runtime info: the OS name/version and the current working directory",
    parameters={"type": "object", "properties": {}},
)
async def get_info(call: ToolInvocation) -> dict[str, Any]:
    """Describe the operating system and the folder of the call."""
    machine = call.machine
    folder = machine.folder or _output_or_unknown(await machine.run(("pwd",), INFO_LIMITS))
    system = _output_or_unknown(await machine.run(("uname", "-a"), INFO_LIMITS))
    return {"os": system, "cwd": readable(folder)}


def _end(finished: Finished) -> str:
    code = -1 if finished.exit_code is None else finished.exit_code
    return f"\n[exit code: {code}]" + " [exit due to timed out]" * finished.has_timed_out


def _output_or_unknown(finished: Finished) -> str:
    return finished.text.strip() if finished.is_success else "unknown"
