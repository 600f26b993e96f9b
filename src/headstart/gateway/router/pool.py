"""The models of a router: which are loaded, which requests wait for one, and which are unloaded.

Belongs to one asyncio loop, so nothing here needs a lock. Requests for the same model wait
together, in one queue in the order of their arrival; a model that answers a request is not unloaded
for another one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from headstart.gateway.proxy import Backend
from headstart.gateway.router.child import ChildProcess
from headstart.gateway.router.pooled_model import (
    LOADED,
    LOADING,
    SLEEPING,
    UNLOADED,
    LoadLimits,
    PooledModel,
)
from headstart.gateway.router.presets import Estimate, ModelPreset
from headstart.server.sse import Broadcast
from headstart.types.errors import BackendError, CapacityError, HeadstartError

log = logging.getLogger(__name__)

# seconds in the queue after which models that are never idle take no new requests for a while
PATIENCE = 30.0


class Pool:
    """All models of a router."""

    def __init__(
        self,
        presets: Sequence[ModelPreset],
        limits: LoadLimits,
        start: Callable[..., ChildProcess] = ChildProcess,
        measure: Callable[[ModelPreset], Awaitable[Estimate]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`measure`: what a model would take if no other one were loaded."""
        self.events = Broadcast()
        self.num_told = Counter[tuple[str, str]]()  # events, by name and the status in them
        self.models = {preset.name: PooledModel(preset) for preset in presets}
        self._limits = limits
        self._start_child, self._measure, self._clock = start, measure, clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._measuring = asyncio.Semaphore(2)  # each is a process with libllama
        self._exited = asyncio.Event()  # set, and replaced, whenever a child ended
        self._outdated: set[PooledModel] = set()  # not loaded until a reload has their presets
        self.is_closed = False

    def find(self, name: str) -> PooledModel | None:
        """The model with this name or alias."""
        if name in self.models:
            return self.models[name]
        return next((one for one in self.models.values() if name in one.preset.aliases), None)

    def running(self) -> list[PooledModel]:
        """The models that have processes."""
        return [one for one in self.models.values() if one.is_running]

    def is_awaited(self, model: PooledModel) -> bool:
        """Whether it will be loaded: requests wait for it, and its turn has not come yet."""
        return bool(model.waiters) and not model.is_running

    @property
    def num_waiting(self) -> int:
        return sum(len(one.waiters) for one in self.models.values())

    async def acquire(self, model: PooledModel, *, wakes: bool = True) -> Backend:
        """Wait until a model is loaded, and keep it loaded until `release`.

        Args:
            wakes: whether a sleeping model is woken; requests that only read its state need no
                engine, and do not count as use.

        Raises:
            BackendError: the model cannot be loaded.
            CapacityError: the router is shutting down.
        """
        if wakes:
            model.last_used = self._clock()
        is_asleep = model.status == SLEEPING and not model.is_stopping
        if model.is_ready or (is_asleep and not wakes):
            model.num_requests += 1
        else:
            await self._wait(model)
        assert model.backend is not None
        return model.backend

    def release(self, model: PooledModel, *, is_use: bool = True) -> None:
        """Count a request as ended; `is_use` as `wakes` of `acquire`."""
        model.num_requests -= 1
        if is_use:
            model.last_used = self._clock()
        if not model.num_requests:
            self._expire_later(model)
            self._advance()

    def load(self, model: PooledModel) -> None:
        """Load a model without waiting for it."""

        async def wait() -> None:
            with suppress(HeadstartError):  # reported as an event and by the model's state
                await self.acquire(model)
                self.release(model)

        self._spawn(wait())

    def unload(self, model: PooledModel) -> None:
        """End a model; one that still loads is killed, one that is awaited will not be loaded."""
        if self.is_awaited(model):
            error = BackendError(f"{model.name} could not be loaded: it was unloaded")
            self._end_wait(model, error)
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
        """Replace the presets; first unload running models that have changed or are gone."""
        new = {preset.name: preset for preset in presets}
        changed = {one for one in self.models.values() if one.preset != new.get(one.name)}
        self._outdated |= changed
        try:
            await asyncio.gather(*map(self.unloaded, changed))
        finally:
            self._outdated -= changed
        for name in self.models.keys() - new.keys():
            gone = self.models.pop(name)
            self._end_wait(gone, BackendError(f"model {name} no longer exists"))
        for name, preset in new.items():
            model = self.models.setdefault(name, PooledModel(preset))
            if model.preset != preset:
                model.failure = ""
                model.estimate = None
            model.preset = preset
        self.tell("models_reload", "*")
        self._advance()

    def tell(self, event: str, model: str, data: Mapping[str, Any] | None = None) -> None:
        self.num_told[event, str((data or {}).get("status", ""))] += 1
        told = {"data": data} if data is not None else {}
        self.events.tell({"model": model, "event": event} | told)

    async def close(self) -> None:
        """End all models."""
        self.is_closed = True
        for model in self.models.values():
            self._end_wait(model, CapacityError("the server is shutting down"))
        while running := self.running():
            await asyncio.gather(*map(self.unloaded, running))
        self.events.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait(self, model: PooledModel) -> None:
        """Wait in the queue; at its end the request counts, so the model stays loaded."""
        if self.is_closed:
            raise CapacityError("the server is shutting down")
        loop = asyncio.get_running_loop()
        if not model.waiters:
            model.waits_since = loop.time()
            loop.call_later(PATIENCE, self._advance)
        model.waiters.append(turn := loop.create_future())
        try:
            self._advance()
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                if turn in model.waiters:
                    model.waiters.remove(turn)
                self._advance()
            elif turn.exception() is None:  # its turn had just come
                self.release(model)
            raise
        if model.backend is None:  # its process has ended since
            self.release(model)
            raise BackendError(f"{model.name} ended before it answered: {model.failure}")

    def _advance(self) -> None:
        """Load and unload what the queue needs now, in the order of arrival."""
        for model in self.models.values():
            model.is_draining = False  # until a waiting request sets it again
        awaited = [one for one in self.models.values() if one.waiters and one not in self._outdated]
        for model in sorted(awaited, key=lambda one: one.waits_since):
            if model.status == LOADING and not model.is_stopping:
                continue
            if model.is_ready:
                self._end_wait(model)
            elif model.is_stopping or model.is_draining:
                return  # no request overtakes
            elif not self._make_room(model):
                if model.is_being_estimated or not model.waiters:
                    continue  # until its size is known
                return
            elif model.status == SLEEPING:
                self._set(model, LOADED)
                self._end_wait(model)
            else:
                self._load(model)

    def _make_room(self, model: PooledModel) -> bool:
        """Unload what is in a model's way, or wait for it; returns whether it can be loaded now."""
        if model.estimate is None and self._measure is not None:
            if not model.is_being_estimated:
                model.is_being_estimated = True
                self._spawn(self._estimate(model))
            return False
        running = [one for one in self.running() if one is not model]
        staying = [one for one in running if not one.is_stopping]
        # one that failed may need what the ending ones still hold
        if self._limits.fits(model, running) and (staying == running or not model.failure):
            return True
        idle = [one for one in staying if self._is_idle(one)]
        busy = [one for one in staying if one not in idle]
        victims = self._limits.victims(model, idle, busy)
        if victims is None and asyncio.get_running_loop().time() - model.waits_since >= PATIENCE:
            victims = self._limits.victims(model, staying, ())
        for victim in victims or ():
            if victim.num_requests or victim.status == LOADING:
                victim.is_draining = True
            else:
                self.unload(victim)
        return False

    def _is_idle(self, model: PooledModel) -> bool:
        """Whether it is started, and no request uses it or waits for it."""
        is_started = model.status in (LOADED, SLEEPING) and not model.is_stopping
        return is_started and not model.num_requests and not model.waiters

    async def _estimate(self, model: PooledModel) -> None:
        assert self._measure is not None
        try:
            async with self._measuring:
                model.estimate = await self._measure(model.preset)
            # the user's budget applies; for other devices the first estimate does
            budget = {**model.estimate.usable, **self._limits.budget}
            self._limits = replace(self._limits, budget=budget)
        except (HeadstartError, OSError, ValueError, KeyError) as error:
            self._fail(model, str(error))
        model.is_being_estimated = False
        self._advance()

    def _load(self, model: PooledModel) -> None:
        log.info("loading %s", model.name)
        model.failure = ""
        self._set(model, LOADING)
        arguments = model.estimate.arguments if model.estimate else ()
        on_state, on_exit = partial(self._on_state, model), partial(self._on_exit, model)
        model.child = self._start_child(model.preset, arguments, on_state, on_exit)

    def _on_state(self, model: PooledModel, state: Mapping[str, Any]) -> None:
        """Handle a report of a child process."""
        match state["state"]:
            case "loaded" if "url" in state:
                assert model.child is not None
                headers = {"authorization": f"Bearer {model.child.key}"}
                model.backend = Backend(name=model.name, url=state["url"], headers=headers)
                model.info, model.costly_failure = state.get("model", {}), ""
                self._set(model, LOADED, info=model.info)
                model.last_used = self._clock()  # nobody may have waited for it
                self._expire_later(model)
            case "loading":
                stage = "text_model"  # the only stage of llama-server's that is reported
                progress = {"stages": [stage], "current": stage, "value": state["progress"]}
                self.tell(
                    "status_change", model.name, {"status": model.status, "progress": progress}
                )
                return
            case "loaded" | "sleeping" as status:
                self._set(model, status)
            case "failed":
                model.failure = state.get("message") or "no reason given"
        self._advance()

    def _on_exit(self, model: PooledModel, code: int) -> None:
        """Handle the end of a child process."""
        was_loading = model.status == LOADING
        is_wanted = model.is_stopping
        model.child = model.backend = None
        model.is_stopping = False
        if model.expiry is not None:
            model.expiry.cancel()
            model.expiry = None
        model.failure = "" if is_wanted else model.failure or f"its process ended with code {code}"
        if model.failure:
            log.error("%s: %s", model.name, model.failure)
        model.exit_code = 0 if is_wanted else code or 1
        self._set(model, UNLOADED, exit_code=model.exit_code)
        self._exited.set()
        self._exited = asyncio.Event()
        if was_loading and model not in self._outdated:
            reason = model.failure or "it was unloaded"
            idle = [one for one in self.models.values() if self._is_idle(one)]
            is_new = model.failure != model.costly_failure
            # file and settings were right for an estimate: it may have lacked memory
            if idle and is_new and model.failure and model.estimate is not None:
                model.costly_failure = model.failure
                victim = min(idle, key=lambda one: (one.status == SLEEPING, one.last_used))
                self.unload(victim)
                reason += f"; {victim.name} is unloaded in case memory was short, try again"
            self._end_wait(model, BackendError(f"{model.name} could not be loaded: {reason}"))
        self._advance()

    def _fail(self, model: PooledModel, reason: str) -> None:
        """Note that a model cannot be loaded, before it was tried."""
        model.failure, model.exit_code = reason, 1
        log.error("%s: %s", model.name, reason)
        self.tell("status_change", model.name, {"status": UNLOADED, "exit_code": 1})
        self._end_wait(model, BackendError(f"{model.name} could not be loaded: {reason}"))

    def _end_wait(self, model: PooledModel, error: HeadstartError | None = None) -> None:
        """Let all requests that wait for a model have it, or an error; later ones try again."""
        for turn in model.waiters:
            if turn.done():  # its client has left
                continue
            if error is None:
                turn.set_result(None)
                model.num_requests += 1
            else:
                turn.set_exception(error)
                turn.exception()  # marks it as retrieved: the client may leave
        model.waiters.clear()

    def _set(self, model: PooledModel, status: str, **data: Any) -> None:
        if model.status == status:
            return
        model.status = status
        # llama-server uses both names like this
        event = "model_status" if status == LOADING else "status_change"
        self.tell(event, model.name, {"status": status, **data})

    def _expire_later(self, model: PooledModel) -> None:
        """Unload a model at the end of its time; a use meanwhile prolongs it."""
        if (seconds := model.preset.idle_seconds) is not None and model.expiry is None:
            left = max(0.0, model.last_used + seconds - self._clock())
            model.expiry = asyncio.get_running_loop().call_later(left, self._expire, model, seconds)

    def _expire(self, model: PooledModel, seconds: float) -> None:
        model.expiry = None
        if not self._is_idle(model):
            return  # until it is released
        if self._clock() - model.last_used >= seconds:
            self.unload(model)
        else:
            self._expire_later(model)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
