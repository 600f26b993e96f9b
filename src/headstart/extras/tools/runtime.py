"""The machine of the built-in tools (`--tools-runtime`): this one, another one, or a container
started for them.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from headstart.extras.tools.command import end_process, shared_environment
from headstart.extras.tools.machine import ENGINES, machine_of
from headstart.extras.tools.tool import ToolError
from headstart.types.errors import ConfigError, HeadstartError

log = logging.getLogger(__name__)


class Runtime:
    """Gives each call a runtime name for `machine_of`.

    A container of ours runs as long as the input of its shell is open, and is removed then.
    """

    def __init__(self, setting: str = "") -> None:
        """Raise a ConfigError if the setting names no runtime."""
        self._setting = setting
        self._engine, _, self._image = setting.partition(":")
        self._starts_container = self._engine in ENGINES and bool(self._image)
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._id = ""
        if not self._starts_container:
            try:
                machine_of(setting, "")
            except HeadstartError as error:
                raise ConfigError(f"--tools-runtime {setting}: {error}") from error

    async def name(self) -> str:
        """The runtime of the next call; starts a container if none runs.

        Raises:
            ToolError: the container cannot be started.
        """
        if not self._starts_container:
            return self._setting
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                self._id = await self._start()
                log.info("tools work in the container %.12s of %s", self._id, self._image)
            return f"{self._engine}-container:{self._id}"

    async def close(self) -> None:
        """Remove the container, if there is one."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 2.0)
        await end_process(process)

    async def _start(self) -> str:
        with TemporaryDirectory(prefix="headstart-tools-") as folder:
            file = Path(folder) / "cid"
            arguments = ("run", "--rm", "-i", "--cidfile", str(file), self._image, "sh")
            try:
                self._process = await asyncio.create_subprocess_exec(
                    self._engine,
                    *arguments,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.DEVNULL,
                    env=shared_environment(),
                    start_new_session=True,
                )
            except OSError as error:
                raise ToolError(f"cannot run {self._engine}: {error}") from error
            for _ in range(600):  # a minute: an image may have to be fetched
                if file.exists() and (found := file.read_text().strip()):
                    return found
                if self._process.returncode is not None:
                    break
                await asyncio.sleep(0.1)
            await end_process(self._process)
            raise ToolError(f"{self._engine} did not start a container of {self._image}")
