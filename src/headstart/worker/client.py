"""The asyncio side of a worker: requests in, events out, restarts when the engine dies."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from functools import partial

from headstart.types.errors import (
    CapacityError,
    HeadstartError,
    ModelError,
    RpcWorkerError,
    WorkerDeadError,
)
from headstart.types.report import WorkerInfo, WorkerReport
from headstart.types.request import (
    EmbeddingEvent,
    ErrorEvent,
    Event,
    FinishEvent,
    Work,
)
from headstart.types.worker import Deliver
from headstart.worker.pipes import Cancel, Said
from headstart.worker.request_log import log_embedding, log_error, log_request
from headstart.worker.transport import ProcessTransport

log = logging.getLogger(__name__)

_SHUTTING_DOWN = "the server is shutting down; ask again when it is back"


class WorkerClient:
    """A `Worker`, which says what its methods do, in another process. Belongs to the asyncio loop
    that called `start`.
    """

    def __init__(self, make_transport: Callable[[], ProcessTransport]) -> None:
        self.status = "loading"
        self.failure = ""
        self.info: WorkerInfo | None = None
        # called with "loading" progress, and when the model was unloaded ("sleeping") or loaded
        self.on_change: Callable[..., None] = lambda state, **more: None
        self._make_transport = make_transport
        self._transport: ProcessTransport | None = None
        self._closing: ProcessTransport | None = None  # being closed, in another thread
        self._report = WorkerReport()
        self._deliver: dict[str, Deliver] = {}  # by request_id
        self._failures = 0  # consecutive engines that ended without an answer
        self._ready_since = 0.0
        # consecutive attempts that made no process, or in which a worker of --rpc did not answer
        self._waits = 0
        self._restarts = 0
        self._unloading: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._launch()
        await asyncio.shield(self._ready)

    def submit(self, request: Work, deliver: Deliver) -> None:
        if self.status != "ready" or self._transport is None:
            raise CapacityError(
                f"the engine is {self.status}" + (f": {self.failure}" if self.failure else "")
            )
        self._transport.send(request)
        self._deliver[request.request_id] = deliver

    def cancel(self, request_id: str) -> None:
        if self._deliver.pop(request_id, None) is not None and self._transport is not None:
            self._transport.send(Cancel(request_id))

    async def report(self) -> WorkerReport:
        return dataclasses.replace(self._report, engine_restarts=self._restarts)

    async def sleep(self) -> None:
        transport = self._transport
        if self.status != "ready" or self._deliver or transport is None:
            return
        log.info("no requests: the model is unloaded until the next one")
        self.status, self._closing, self._transport = "sleeping", transport, None
        self._report = dataclasses.replace(self._report, memory_bytes=0)
        transport.send(None)
        self._unloading = asyncio.create_task(asyncio.to_thread(transport.close))
        self.on_change("sleeping")

    async def wake(self) -> None:
        if self.status == "sleeping":
            self.status = "waking"
            self._waking = asyncio.create_task(self._load_again())
            # the waiting requests may be gone when it fails
            self._waking.add_done_callback(lambda task: task.cancelled() or task.exception())
        if self.status == "waking" and self._waking is not None:
            await asyncio.shield(self._waking)

    async def _load_again(self) -> None:
        if self._unloading is not None:
            await asyncio.wait([self._unloading])  # it fails where no thread can be made
        self._ready = self._loop.create_future()
        try:
            if self.status == "closed":
                raise CapacityError(_SHUTTING_DOWN)
            self._launch()
            await self._ready
        except Exception as error:
            if self.status == "closed":
                raise CapacityError(_SHUTTING_DOWN) from error
            self.status, self._transport = "sleeping", None
            log.error("the model could not be loaded again: %s", error)
            raise CapacityError(
                f"the model could not be loaded again: {error}; try again later"
            ) from error

    async def close(self) -> None:
        self.status = "closed"
        self._fail_all(CapacityError(_SHUTTING_DOWN))
        transport = self._transport
        if transport is not None and transport is not self._closing:
            self._closing = transport
            transport.send(None)
            await asyncio.to_thread(transport.close)

    def kill(self) -> None:
        """Stop without waiting for the current step, when the user asked twice. Call it in the
        loop's thread.
        """
        self.status = "closed"  # so that nothing restarts it
        self._fail_all(CapacityError(_SHUTTING_DOWN))
        for transport in (self._transport, self._closing):
            if transport is not None:
                transport.kill()

    def _launch(self) -> None:
        self._transport = None
        transport = self._make_transport()
        transport.start(partial(self._hear, transport))
        self._transport = transport

    def _hear(self, transport: ProcessTransport, said: Said) -> None:
        if transport is not self._transport:  # of an earlier engine
            return
        match said:
            case list():
                for event in said:
                    if event.is_last:
                        self._note_end(event)
                    find = self._deliver.pop if event.is_last else self._deliver.get
                    if (deliver := find(event.request_id, None)) is not None:
                        deliver(event.error if isinstance(event, ErrorEvent) else event)
            case WorkerReport():
                self._report = said
            case float():
                if self.status != "restarting":  # loading has no end event
                    self.on_change("loading", progress=said)
            case WorkerInfo():
                self._on_ready(said)
            case _:
                self._on_end(said)

    def _on_ready(self, info: WorkerInfo) -> None:
        if self.status == "closed":
            return
        self.info, self.status, self.failure = info, "ready", ""
        self._ready_since, self._waits = time.monotonic(), 0
        if not self._ready.done():
            self._ready.set_result(None)
            if self._waking is not None:
                log.info("the model is loaded again")
                self.on_change("loaded")
        else:
            log.warning("the engine is ready again after restart %d", self._restarts)

    def _note_end(self, event: Event) -> None:
        """Log the end here, because cancelled requests have no listener any longer."""
        match event:
            case FinishEvent():
                log_request(event.request_id, event.stats, event.reason)
                if event.stats.num_emitted:
                    self._failures = 0
            case ErrorEvent():
                log_error(event)
            case EmbeddingEvent():
                log_embedding(event)
                self._failures = 0

    def _on_end(self, error: BaseException) -> None:
        if self.status == "closed":
            if not self._ready.done():
                self._ready.set_exception(CapacityError(_SHUTTING_DOWN))
                self._ready.exception()  # perhaps nothing waits for it any longer
            return
        self.failure = str(error)
        if not self._ready.done():
            self.status = "failed"
            self._ready.set_exception(_load_error(error, self.failure))
            return
        self._fail_all(
            WorkerDeadError(
                f"{self.failure} while this request was running; the server restarts it, try again"
            )
        )
        if isinstance(error, RpcWorkerError):  # nothing is wrong here, and it may come back
            self.status = "restarting"
            self._waits += 1
            self._restart_after(_delay(self._waits))
            return
        was_stable = time.monotonic() - self._ready_since >= 60.0
        self._failures = 1 if self.status == "ready" and was_stable else self._failures + 1
        if self._failures > 3:
            self.status = "failed"
            self.failure += (
                f"; {self._failures} engines in a row answered nothing, so it stays down"
            )
            log.error("%s", self.failure)
            return
        self.status = "restarting"
        self._restart_after(_delay(self._failures - 1))

    def _restart_after(self, seconds: float) -> None:
        log.error("%s; restarting it in %g s", self.failure, seconds)
        self._loop.call_later(seconds, self._restart)

    def _restart(self) -> None:
        """Start a new engine; retry as long as the system has no room for a process."""
        if self.status == "closed":
            return
        try:
            self._launch()
        except Exception as error:
            self._waits += 1
            self.failure = f"no new engine process can be made: {error}"
            self._restart_after(_delay(self._waits))
            return
        self._restarts += 1

    def _fail_all(self, error: HeadstartError) -> None:
        running, self._deliver = self._deliver, {}
        for request_id, deliver in running.items():
            log.warning("request %s failed: %s", request_id, error)
            deliver(error)


def _delay(number: int) -> float:
    """Seconds before a restart after `number` consecutive failures."""
    return min(30.0, 2.0 ** (number - 1)) if number else 0.0


def _load_error(error: BaseException, failure: str) -> HeadstartError:
    """Why the models could not be loaded; a process that just died leaves only a guess."""
    if isinstance(error, WorkerDeadError):
        return ModelError(
            f"{failure} while it loaded the models; a file is damaged, or memory ran out"
        )
    return error if isinstance(error, HeadstartError) else HeadstartError(failure)
