"""State shared by the routes: the served model, request defaults and the worker."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from starlette.requests import Request as HttpRequest

from headstart.config import Config, ServerConfig
from headstart.server.sse import Broadcast
from headstart.server.threads import Threads
from headstart.structures.tenants import counted
from headstart.text.chat_template import ChatTemplate
from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.find import find_format
from headstart.types import Vocab
from headstart.types.constraint import Constraint
from headstart.types.errors import CapacityError
from headstart.types.report import Counters, WorkerInfo
from headstart.types.sampling_params import SamplingParams
from headstart.types.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDefaults:
    """Values for requests that do not set them, from flags and the model file."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None  # None: random for each request
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    constraint: Constraint | None = None  # for requests without one


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The target model as seen by the HTTP side."""

    alias: str
    vocab: Vocab
    template: ChatTemplate
    aliases: tuple[str, ...] = ()  # alternative names
    tags: tuple[str, ...] = ()
    config: Config = field(default_factory=Config, repr=False)  # contains secrets
    defaults: RequestDefaults = field(default_factory=RequestDefaults)
    # how to join a query and a document: the model's template with {query} and {document}, or the
    # tokens before, between and after them
    pair_template: str | None = None
    pair_marks: Sequence[Sequence[int]] = ((), (), ())
    # effective values with their origins, JSON-ready
    settings: Sequence[Mapping[str, Any]] = ()

    @property
    def answer_format(self) -> AnswerFormat:
        """How the model writes reasoning and tool calls."""
        return find_format(self.template)


@dataclass(slots=True)
class Service:
    """State shared by an app's routes; the loading task sets `model` or `load_failure` once."""

    config: ServerConfig
    worker: Worker
    started_at: float = field(default_factory=time.time)
    model: ServedModel | None = None
    load_failure: str = ""
    num_awake: int = 0  # requests that need the model loaded
    idle_since: float = 0.0  # time.monotonic() when the last of them ended
    # separate pools, so that prompt work never queues behind image or token-count work, and started
    # answers are never rejected
    prompt_threads: Threads = field(default_factory=partial(Threads, "prompts", 4, 512))
    media_threads: Threads = field(default_factory=partial(Threads, "media", 2, 512))
    text_threads: Threads = field(default_factory=partial(Threads, "texts", 2, 64))
    answer_threads: Threads = field(default_factory=partial(Threads, "answers", 2, 2**30))
    # by tenant, held during a slot action
    slot_actions: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary
    )
    image_questions: WeakValueDictionary[str, asyncio.Semaphore] = field(  # by tenant
        default_factory=WeakValueDictionary
    )
    adapter_scales: dict[str, tuple[float, ...]] = field(default_factory=dict)  # by tenant
    counters_read: Counters = field(default_factory=Counters)  # when /metrics was last read
    # to the server's state; a slow one gets the newest state only
    listeners: Broadcast = field(default_factory=partial(Broadcast, 1))
    # counts of the last three minutes, for new listeners
    history: deque[dict[str, float]] = field(default_factory=partial(deque, maxlen=90))

    _num_held: Counter[str] = field(default_factory=Counter)  # requests by tenant

    async def close(self) -> None:
        """Fail all pending reads and answers with the shutdown error."""
        reading = self.prompt_threads, self.media_threads
        for threads in (*reading, self.text_threads, self.answer_threads):
            threads.close()
        await self.worker.close()

    def holding(self, tenant: str, count: int) -> AbstractContextManager[None]:
        """Count requests while they are waiting or running.

        Excess requests are refused here, because refusing hundreds of them would take the engine's
        time from others.

        Raises:
            CapacityError: the tenant alone would have more than may wait and run.
        """
        most = self.info.max_requests
        if self._num_held[tenant] + count > most:
            raise CapacityError(
                f"{self._num_held[tenant]} of your requests wait or run, and {count} more do not "
                f"fit the {most} that --max-queue and the slots allow; try again later"
            )
        return counted(self._num_held, tenant, count)

    def why_not_ready(self, *, with_details: bool = True) -> str | None:
        """Why requests cannot be answered now; None if they can.

        Details may name files, so they are for authorized clients only.
        """
        status, reason = self.worker.status, self.load_failure or self.worker.failure
        if not with_details:
            reason = "the server's log says why, and /health to those who send an API key"
        if self.load_failure or status == "failed":
            return (
                f"the model could not be loaded: {reason}"
                if self.model is None
                else f"the engine failed: {reason}"
            )
        if status == "restarting":
            return f"restarting the engine: {reason}"
        if status == "closed":
            return "the server is shutting down"
        is_loaded = status in ("ready", "sleeping", "waking") and self.model is not None
        return None if is_loaded else "Loading model"

    @property
    def served(self) -> ServedModel:
        """The model; routes run only once it is loaded."""
        assert self.model is not None
        return self.model

    @property
    def info(self) -> WorkerInfo:
        assert self.worker.info is not None
        return self.worker.info

    @property
    def fingerprint(self) -> str:
        """Identifies the model file and the libllama build."""
        parts = (self.info.system, self.info.target.path, str(self.info.target.size_bytes))
        return "headstart-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def service_of(request: HttpRequest) -> Service:
    """The service of the request's app."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
