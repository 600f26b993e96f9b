"""The models of a router: which of them are loaded, who waits for one, and which one has to go.

Belongs to one asyncio loop, so that nothing here needs a lock. Requests that wait for the same
model wait together, in one queue in the order of their arrival; a model that answers somebody is
never unloaded for another one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from headstart.gateway.router.broadcast import Broadcast
from headstart.gateway.router.child import TENANT_HEADER, Start
from headstart.gateway.router.eviction import Estimate, Room
from headstart.gateway.router.pooled_model import (
    LOADED,
    LOADING,
    SLEEPING,
    STARTED_STATES,
    UNLOADED,
    PooledModel,
)
from headstart.gateway.router.presets import ModelPreset
from headstart.gateway.router.proxy import Backend
from headstart.types.errors import BackendError, HeadstartError, UnavailableError

log = logging.getLogger(__name__)

# what a model that did not get its memory ends with: an abort, the system's own killer
MEMORY_SIGNALS = (-6, -9)
MEMORY_ERROR = "MemoryFullError"
# seconds in line after which models that never come to rest take no new requests until then
PATIENCE = 30.0

Describe = Callable[[Backend], Awaitable[Mapping[str, Any]]]
"""What a model's server says of it."""

Measure = Callable[[ModelPreset], Awaitable[Estimate]]
"""What a model would take if no other one were loaded."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """Those who wait for one model."""

    model: PooledModel
    done: asyncio.Future[None]
    since: float
    num_waiters: int = 0


class Pool:
    """All models of a router."""

    def __init__(
        self,
        presets: Sequence[ModelPreset],
        room: Room,
        start: Start,
        measure: Measure | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.events = Broadcast()
        self.describe: Describe | None = None
        self.models = {preset.name: PooledModel(preset) for preset in presets}
        self._room = room
        self._start_child, self._measure, self._clock = start, measure, clock
        self._queue: dict[str, _Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._exited = asyncio.Event()  # set, and made anew, whenever a child ended
        self.is_closed = False

    def find(self, name: str) -> PooledModel | None:
        """The model with this name, or this further name."""
        if name in self.models:
            return self.models[name]
        return next((one for one in self.models.values() if name in one.preset.aliases), None)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a model."""
        return sum(one.num_waiters for one in self._queue.values())

    async def acquire(self, model: PooledModel, *, wakes: bool = True) -> Backend:
        """Wait until a model is loaded, and keep it so until `release`.

        Args:
            wakes: whether a sleeping one has to be awake; what only asks about it needs no engine.

        Raises:
            BackendError: it cannot be loaded.
            UnavailableError: the router ends.
        """
        if wakes:
            model.last_used = self._clock()
        if model.is_ready or (not wakes and model.is_asleep):
            model.num_requests += 1
        else:
            await self._wait(model)
        assert model.backend is not None
        return model.backend

    def release(self, model: PooledModel) -> None:
        """A request is over."""
        model.num_requests -= 1
        if not model.num_requests:
            self._expire_later(model)
            self._advance()

    def load(self, model: PooledModel) -> None:
        """Load a model without waiting for it."""

        async def wait() -> None:
            with suppress(HeadstartError):  # told as an event, and by its state
                await self.acquire(model)
                self.release(model)

        self._spawn(wait())

    def unload(self, model: PooledModel) -> None:
        """End a model; one that still loads is killed."""
        if not model.is_running or model.is_stopping:
            return
        log.info("unloading %s", model.name)
        assert model.child is not None
        model.is_stopping = True
        if model.status == LOADING:
            model.child.kill()
        else:
            model.child.stop()

    async def unloaded(self, model: PooledModel) -> None:
        """Unload a model and wait until its processes are gone."""
        while model.is_running:
            exited = self._exited
            self.unload(model)
            await exited.wait()

    async def reload(self, presets: Sequence[ModelPreset]) -> None:
        """Take other presets: what is loaded and has changed, or is gone, is unloaded first."""
        new = {preset.name: preset for preset in presets}
        while changed := [
            one
            for one in self.models.values()
            if one.is_running and replace(new.get(one.name) or _GONE, is_hidden=False)
            != replace(one.preset, is_hidden=False)
        ]:  # fmt: skip
            exited = self._exited
            for one in changed:
                self.unload(one)
            await exited.wait()
        for name in self.models.keys() - new.keys():
            del self.models[name]
            if waiting := self._queue.pop(name, None):
                waiting.done.set_exception(BackendError(f"there is no model {name} any more"))
        for name, preset in new.items():
            model = self.models.setdefault(name, PooledModel(preset))
            if model.preset != preset:
                model.preset, model.exit_code = preset, 0
                model.estimate = model.estimate if model.is_running else None
        self.events.tell("models_reload", "*")

    async def close(self) -> None:
        """End all models."""
        self.is_closed = True
        for waiting in self._queue.values():
            _fail(waiting, UnavailableError("the server is shutting down"))
        for model in self.models.values():
            self.unload(model)
        while any(one.is_running for one in self.models.values()):
            await self._exited.wait()
        self.events.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait(self, model: PooledModel) -> None:
        """Wait in line; count the request before leaving it, so that nobody unloads the model in
        between.
        """
        if self.is_closed:
            raise UnavailableError("the server is shutting down")
        waiting = self._queue.get(model.name)
        if waiting is None:
            loop = asyncio.get_running_loop()
            waiting = _Waiting(model, loop.create_future(), loop.time())
            self._queue[model.name] = waiting
            loop.call_later(PATIENCE, self._advance)
        waiting.num_waiters += 1
        try:
            self._advance()
            await asyncio.shield(waiting.done)
            model.num_requests += 1
        finally:
            waiting.num_waiters -= 1
            if not waiting.num_waiters and self._queue.get(model.name) is waiting:
                del self._queue[model.name]
                waiting.done.cancel()
            self._advance()

    def _advance(self) -> None:
        """Do what can be done for those who wait, in the order of their arrival."""
        for model in self.models.values():
            model.is_draining = False  # until somebody who waits says so again
        for waiting in list(self._queue.values()):
            model = waiting.model
            if waiting.done.done() or (model.status == LOADING and not model.is_stopping):
                continue
            if model.is_ready:
                waiting.done.set_result(None)
            elif model.is_stopping or model.is_draining:
                return  # nobody overtakes
            elif not self._has_room(waiting):
                if model.is_measured or waiting.done.done():
                    continue  # its turn comes when that is known
                return
            elif model.status == SLEEPING:
                self._set(model, LOADED)
                waiting.done.set_result(None)
            else:
                self._load(model)

    def _has_room(self, waiting: _Waiting) -> bool:
        """Whether a model can be loaded now; if not, what is in its way is unloaded, or awaited."""
        model = waiting.model
        if model.waits_for is not None and model.waits_for.is_running:
            return False
        model.waits_for = None
        if model.estimate is None and self._measure is not None:
            if not model.is_measured:
                model.is_measured = True
                self._spawn(self._estimate(model))
            return False
        running = [one for one in self.models.values() if one.is_running and one is not model]
        if self._room.fits(model, running):
            return True
        staying = [one for one in running if not one.is_stopping]
        idle = [one for one in staying if self._is_idle(one)]
        busy = [one for one in staying if one not in idle]
        victims = self._room.victims(model, idle, busy)
        if victims is None and asyncio.get_running_loop().time() - waiting.since >= PATIENCE:
            due = [one for one in staying if self._is_due(one)]
            rest = [one for one in staying if one not in due]
            victims = self._room.victims(model, rest, due)
        for victim in victims or ():
            if victim.num_requests or victim.status == LOADING:
                victim.is_draining = True
            else:
                self.unload(victim)
        return False

    def _is_idle(self, model: PooledModel) -> bool:
        """Nobody uses it, and nobody waits to."""
        is_started = model.status in STARTED_STATES and not model.is_stopping
        return is_started and not model.num_requests and model.name not in self._queue

    def _is_due(self, model: PooledModel) -> bool:
        """Those who waited for it may go on now and have not yet done so."""
        waiting = self._queue.get(model.name)
        return waiting is not None and waiting.done.done()

    async def _estimate(self, model: PooledModel) -> None:
        assert self._measure is not None
        try:
            model.estimate = await self._measure(model.preset)
            # what the user said of a device stands; of others the first estimate does
            budget = {**model.estimate.usable, **self._room.budget}
            self._room = replace(self._room, budget=budget)
        except (HeadstartError, OSError, ValueError, KeyError) as error:
            self._fail(model, str(error))
        model.is_measured = False
        self._advance()

    def _load(self, model: PooledModel) -> None:
        log.info("loading %s", model.name)
        model.failure, model.exit_code, model.lacks_memory = "", 0, False
        self._set(model, LOADING)
        arguments = model.estimate.arguments if model.estimate else ()
        model.child = self._start_child(model.preset, arguments, _ChildListener(self, model))

    def on_state(self, model: PooledModel, state: Mapping[str, Any]) -> None:
        """A child says how it is doing."""
        match state["state"]:
            case "loaded" if "url" in state:
                assert model.child is not None
                headers = {"authorization": f"Bearer {model.child.key}", TENANT_HEADER.lower(): ""}
                model.backend = Backend(name=model.name, url=state["url"], headers=headers)
                model.info, model.is_retried = {}, False
                self._set(model, LOADED)
                self._spawn(self._ask_what_it_is(model, model.backend))
                self._expire_later(model)
            case "loaded" | "sleeping" as status:
                self._set(model, status)
            case "failed":
                model.failure = state.get("message") or "no reason given"
                model.lacks_memory = state.get("error") == MEMORY_ERROR
        self._advance()

    async def _ask_what_it_is(self, model: PooledModel, backend: Backend) -> None:
        if self.describe is None:
            return
        with suppress(BackendError, ValueError, LookupError):  # it is only shown
            info = await self.describe(backend)
            if model.backend is backend:
                model.info = info

    def on_exit(self, model: PooledModel, code: int) -> None:
        """A child ended."""
        was_loading = model.status == LOADING
        lacked_memory = model.lacks_memory or code in MEMORY_SIGNALS
        is_wanted = model.is_stopping
        model.child = model.backend = None
        model.is_stopping = False
        if not is_wanted:
            model.failure = model.failure or f"its process ended with code {code}"
            log.error("%s: %s", model.name, model.failure)
        is_retried = was_loading and not is_wanted and lacked_memory and self._retry(model)
        if not is_retried:
            model.exit_code = 0 if is_wanted else code or 1
            self._set(model, UNLOADED, exit_code=model.exit_code)
        self._note_exit()
        if was_loading and not is_retried and (waiting := self._queue.get(model.name)):
            reason = model.failure or "it was unloaded"
            _fail(waiting, BackendError(f"{model.name} could not be loaded: {reason}"))
            del self._queue[model.name]  # who comes now tries again
        self._advance()

    def _note_exit(self) -> None:
        self._exited.set()
        self._exited = asyncio.Event()

    def _retry(self, model: PooledModel) -> bool:
        """Try once more with less beside it; whether that is possible."""
        idle = [one for one in self.models.values() if self._is_idle(one)]
        if model.is_retried or not idle or model.name not in self._queue:
            model.is_retried = False
            return False
        victim = min(idle, key=lambda one: one.last_used)
        log.warning("%s: trying once more without %s", model.name, victim.name)
        model.is_retried, model.waits_for = True, victim
        self.unload(victim)
        self._set(model, UNLOADED)
        return True

    def _fail(self, model: PooledModel, reason: str) -> None:
        """It cannot be loaded, which is known before it is tried."""
        model.failure, model.exit_code = reason, 2
        log.error("%s: %s", model.name, reason)
        self.events.tell("status_change", model.name, {"status": UNLOADED, "exit_code": 2})
        if waiting := self._queue.pop(model.name, None):
            _fail(waiting, BackendError(f"{model.name} could not be loaded: {reason}"))

    def _set(self, model: PooledModel, status: str, **data: Any) -> None:
        if model.status == status:
            return
        model.status = status
        # both names are llama-server's, in these places
        event = "model_status" if status == LOADING else "status_change"
        self.events.tell(event, model.name, {"status": status, **data})

    def _expire_later(self, model: PooledModel) -> None:
        if (seconds := model.preset.idle_seconds) is not None:
            asyncio.get_running_loop().call_later(seconds, self._expire, model, model.last_used)

    def _expire(self, model: PooledModel, last_used: float) -> None:
        if self._is_idle(model) and model.last_used == last_used:
            self.unload(model)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _ChildListener:
    """Tells the pool what the child of one model says."""

    def __init__(self, pool: Pool, model: PooledModel) -> None:
        self._pool, self._model = pool, model

    def on_state(self, state: Mapping[str, Any]) -> None:
        self._pool.on_state(self._model, state)

    def on_exit(self, code: int) -> None:
        self._pool.on_exit(self._model, code)


_GONE = ModelPreset(name="", source="", arguments=())


def _fail(waiting: _Waiting, error: HeadstartError) -> None:
    if not waiting.done.done():
        waiting.done.set_exception(error)
        waiting.done.exception()  # seen: everybody who waited may have left
