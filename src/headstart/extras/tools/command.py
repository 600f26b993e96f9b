"""Runs one program with limits of time and output."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headstart.extras.tools import supervisor
from headstart.structures.system import kill_group

# what programs inherit: no keys and tokens
SHARED = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|TERM|LANG|LANGUAGE|LC_.*|TZ|TMPDIR|XDG_.*|LD_LIBRARY_PATH|"
    # how docker, podman and ssh reach other machines
    "DOCKER_.*|CONTAINER_.*|SSH_AUTH_SOCK"
)


@dataclass(frozen=True, slots=True)
class Finished:
    """Result of a program; `exit_code` is negative for a signal, None if it never ran."""

    output: bytes
    exit_code: int | None
    has_timed_out: bool = False
    is_cut: bool = False

    @property
    def is_success(self) -> bool:
        return self.exit_code == 0 and not self.has_timed_out

    @property
    def text(self) -> str:
        """The output as text, with a note if it was cut."""
        text = self.output.decode("utf-8", "replace")
        return text + "\n[output truncated]" if self.is_cut else text


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLimits:
    """Limits of one program."""

    seconds: float
    output_bytes: int
    is_supervised: bool = False  # what leaves its process group is killed too, on Linux


def shared_environment() -> dict[str, str]:
    """The variables that commands, container programs and MCP servers inherit."""
    return {name: value for name, value in os.environ.items() if SHARED.fullmatch(name)}


async def run_command(
    arguments: Sequence[str],
    limits: CommandLimits,
    *,
    folder: str | None = None,
    given: bytes = b"",
    merges_errors: bool = True,
    on_output: Callable[[bytes], None] | None = None,
) -> Finished:
    """Run a program until it ends or its time is over; kill what is left of it and its children.

    They are killed if the call is cancelled as well.

    Args:
        given: its standard input.
        merges_errors: stderr is part of the output; else it is dropped.
        on_output: called with each piece of the output, up to the limit.
    """
    is_supervised = limits.is_supervised and sys.platform == "linux"
    if is_supervised:
        arguments = (sys.executable, "-IS", str(Path(supervisor.__file__)), *arguments)
    errors = asyncio.subprocess.STDOUT if merges_errors else asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            cwd=folder or None,
            env=shared_environment(),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
        return Finished(f"cannot run {arguments[0]}: {error}".encode(), None)
    assert process.stdout is not None
    output, num_bytes, has_timed_out = bytearray(), 0, False
    writing = asyncio.ensure_future(_write(process, given))
    try:
        async with asyncio.timeout(limits.seconds):
            # output beyond the limit is read as well, or the program would block on its pipe
            while piece := await process.stdout.read(65536):
                num_bytes += len(piece)
                kept = piece[: limits.output_bytes - len(output)]
                output.extend(kept)
                if kept and on_output is not None:
                    on_output(kept)
            if is_supervised:
                _tell(process, signal.SIGUSR1)
            await process.wait()
    except TimeoutError:
        has_timed_out = True
    finally:
        writing.cancel()
        if is_supervised:
            # it kills all descendants of the program, for which we wait a few seconds at most
            _tell(process, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 6.0)
        await end_process(process)
        await asyncio.gather(writing, return_exceptions=True)
    return Finished(bytes(output), process.returncode, has_timed_out, num_bytes > len(output))


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Kill a program with its children, and wait a second at most until they are gone."""
    kill_group(process.pid)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), 1.0)


def _tell(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """`Process.send_signal` would ask first whether it has ended, and take its exit code from the
    loop, which then reports 255.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):  # already ended
            os.kill(process.pid, number)


async def _write(process: asyncio.subprocess.Process, given: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(given)
        await process.stdin.drain()
    process.stdin.close()
