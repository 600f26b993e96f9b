"""A server: a separate process tree, on loopback by default, with its own key."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headstart.gateway.router.presets import ModelPreset
from headstart.structures.system import kill_group

TENANT_HEADER = "X-Headstart-Tenant"


class ChildProcess:
    """`headstart serve` in a process, whose own children are in its session."""

    def __init__(
        self,
        preset: ModelPreset,
        arguments: Sequence[str],
        on_state: Callable[[Mapping[str, Any]], None],
        on_exit: Callable[[int], None],
    ) -> None:
        """Start a model's server with further arguments.

        Args:
            on_state: called with its reports: `state` is loading, loaded, sleeping or failed.
            on_exit: called when all its processes ended; negative for a signal.
        """
        self.key = secrets.token_urlsafe(24)
        self._preset, self._arguments = preset, arguments
        self._on_state, self._on_exit = on_state, on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._ending: Callable[[], None] | None = None  # `stop` or `kill`
        self._killing: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Ask it to end; kill it after the seconds of its preset."""
        self._ending = self._ending or self.stop
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        if self._killing is None:
            loop = asyncio.get_running_loop()
            self._killing = loop.call_later(self._preset.stop_seconds, self.kill)

    def kill(self) -> None:
        self._ending = self.kill
        if self._process is not None:
            kill_group(self._process.pid)

    async def _run(self) -> None:
        code = 1
        try:
            code = await self._live()
        except OSError as error:
            reason = f"no process can be made: {error}"
            self._on_state({"state": "failed", "message": reason})
        finally:
            if self._killing is not None:
                self._killing.cancel()
            self._on_exit(code)

    async def _live(self) -> int:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                number = theirs.fileno()
                own = {"HEADSTART_ROUTER": str(number), "HEADSTART_API_KEY": self.key}
                process = self._process = await asyncio.create_subprocess_exec(
                    *command(self._preset, self._arguments),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    env={**self._preset.environment, **own},
                    pass_fds=[number],
                    start_new_session=True,  # Ctrl-C is for the router, which ends them in order
                )
            except BaseException:
                ours.close()
                raise
        if self._ending is not None:  # it was called before there was a process
            self._ending()
        reader, writer = await asyncio.open_connection(sock=ours)
        assert process.stdout is not None
        reading = asyncio.gather(self._listen(reader), self._pass_on(process.stdout))
        try:
            code = await process.wait()
        finally:
            kill_group(process.pid)  # its own children
            writer.close()  # a child whose router is gone ends
            await reading
        return code

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await reader.readline()
                if not line.endswith(b"\n"):  # its end may cut a line off
                    return
                state = json.loads(line)
            except OSError:  # it was killed
                return
            except ValueError as error:  # a line was too long
                self._on_state({"state": "failed", "message": f"its report is unreadable: {error}"})
                self.kill()
                return
            self._on_state(state)

    async def _pass_on(self, output: asyncio.StreamReader) -> None:
        """Write its log, with its name before each line."""
        prefix = f"[{self._preset.name}] " if self._preset.name else ""
        while not output.at_eof():
            with contextlib.suppress(ValueError):  # longer than 64 KiB, and left out
                line = await output.readline()
                with contextlib.suppress(OSError):  # a full disk must not stop the child's output
                    sys.stderr.write(prefix + line.decode("utf-8", "replace") if line else "")


def command(preset: ModelPreset, arguments: Sequence[str] = ()) -> list[str]:
    """The command line of a model's server; the router's own arguments come last and win."""
    own = ["--port=0", f"--tenant-header={TENANT_HEADER}", "--no-page"]
    own += [f"--alias={preset.name}"] if preset.name else []
    return [sys.executable, "-m", "headstart", "serve", *preset.arguments, *arguments, *own]
