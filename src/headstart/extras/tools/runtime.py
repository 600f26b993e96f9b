"""Where the built-in tools work (`--tools-runtime`): here, on a machine that is there, or in a
container that is started for them.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from headstart.extras.tools.command import end_process
from headstart.extras.tools.machine import ENGINES, RuntimeNameError, machine_of
from headstart.extras.tools.tool import ToolError
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)

START_SECONDS = 60.0  # an image may have to be fetched
STOP_SECONDS = 2.0
LOOK_SECONDS = 0.1


class Runtime:
    """A name that `machine_of` understands, found anew for each call.

    Raises:
        ConfigError: the setting names none.
    """

    def __init__(self, setting: str = "") -> None:
        engine, _, image = setting.partition(":")
        self._setting = setting
        self._container = Container(engine, image) if engine in ENGINES and image else None
        if self._container is None:
            try:
                machine_of(setting, "")
            except RuntimeNameError as error:
                raise ConfigError(f"--tools-runtime {setting}: {error}") from error

    async def name(self) -> str:
        """What the next call works in.

        Raises:
            ToolError: the container cannot be started.
        """
        return self._setting if self._container is None else await self._container.name()

    async def close(self) -> None:
        """Remove the container, if there is one."""
        if self._container is not None:
            await self._container.close()


class Container:
    """A container of ours: it runs as long as its shell's input is open, and is removed then."""

    def __init__(self, engine: str, image: str) -> None:
        self._engine, self._image = engine, image
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._id = ""

    async def name(self) -> str:
        """The running container's, which is started if there is none.

        Raises:
            ToolError: it does not start.
        """
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                self._id = await self._start()
                log.info("tools work in the container %.12s of %s", self._id, self._image)
            return f"{self._engine}-container:{self._id}"

    async def close(self) -> None:
        """Remove it: its shell ends with its input."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
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
                    start_new_session=True,
                )
            except OSError as error:
                raise ToolError(f"cannot run {self._engine}: {error}") from error
            for _ in range(round(START_SECONDS / LOOK_SECONDS)):
                if file.exists() and (found := file.read_text().strip()):
                    return found
                if self._process.returncode is not None:
                    break
                await asyncio.sleep(LOOK_SECONDS)
            await end_process(self._process)
            raise ToolError(f"{self._engine} did not start a container of {self._image}")
