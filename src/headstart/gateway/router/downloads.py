"""Downloads of models: a process each, whose progress is reported as events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from headstart.server.errors import ApiError
from headstart.types.errors import ConfigError, ModelError

log = logging.getLogger(__name__)

MAX_AT_ONCE = 4


class ModelStore(Protocol):
    """The place of downloaded models. Its methods may block."""

    def check(self, name: str) -> None:
        """Raise ConfigError or ModelError unless the model can be downloaded."""

    def download(self, name: str) -> tuple[list[str], dict[str, str]]:
        """The program that downloads it, and its environment. It prints a JSON object per line:
        `{"source", "done", "total"}` in bytes, or `{"error"}`.
        """

    def remove(self, name: str) -> None:
        """Delete it; raise ModelError if it is not there."""

    def drop_unfinished(self, name: str) -> None:
        """Delete what a killed download left."""


class Downloads:
    """All downloads of a router; `reload` reads which models there are. For one asyncio loop."""

    def __init__(
        self,
        store: ModelStore,
        tell: Callable[[str, str, Mapping[str, Any]], None],
        reload: Callable[[], Awaitable[None]],
    ) -> None:
        """`tell`: reports an event of a model, with its data."""
        self.store = store
        self._tell, self._reload = tell, reload
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def names(self) -> list[str]:
        return list(self._tasks)

    async def start(self, name: str) -> None:
        """Begin to download a model.

        Raises:
            ApiError: the store cannot have it, or too many are being downloaded.
        """
        self._check_place(name)
        try:
            await asyncio.to_thread(self.store.check, name)
        except (ConfigError, ModelError) as error:
            raise ApiError(400, str(error)) from error
        self._check_place(name)
        log.info("downloading %s", name)
        self._tasks[name] = asyncio.create_task(self._run(name))

    async def cancel(self, name: str) -> bool:
        """End a download; returns whether there was one."""
        if (task := self._tasks.get(name)) is None:
            return False
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(self.store.drop_unfinished, name)
        return True

    async def close(self) -> None:
        for name in self.names:
            await self.cancel(name)

    def _check_place(self, name: str) -> None:
        if name in self._tasks:
            raise ApiError(400, f"the model {name} is being downloaded already")
        if len(self._tasks) >= MAX_AT_ONCE:
            raise ApiError(
                400, f"{MAX_AT_ONCE} models are being downloaded; ask again when one is done"
            )

    async def _run(self, name: str) -> None:
        failure = "it was cancelled"
        try:
            failure = await self._download(name)
            if not failure:
                await self._reload()
        except (OSError, ValueError, ConfigError) as error:
            failure = str(error)
        finally:
            del self._tasks[name]
            if failure:
                log.warning("%s was not downloaded: %s", name, failure)
                self._tell("download_failed", name, {"message": failure})
            else:
                log.info("downloaded %s", name)
                self._tell("download_finished", name, {})

    async def _download(self, name: str) -> str:
        """Download; return why it failed, or an empty text."""
        program, environment = self.store.download(name)
        process = await asyncio.create_subprocess_exec(
            *program,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # bars of progress
            env=environment,
            start_new_session=True,  # Ctrl-C is for the router
        )
        failure = ""
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                said = json.loads(line) if line.startswith(b"{") else {}
                failure = said.get("error", failure)
                if "source" in said:
                    part = {"done": said.get("done", 0), "total": said.get("total", 0)}
                    self._tell("download_progress", name, {said["source"]: part})
            code = await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await asyncio.wait_for(process.wait(), 5)
        return failure or (f"the download ended with code {code}" if code else "")
