"""What is served: the facts of the loaded model that routes need, and where they find them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from starlette.requests import Request as HttpRequest

from headstart.config import ServerConfig
from headstart.server.conversation import ChatDefaults
from headstart.server.kept_passages import CorpusReader
from headstart.server.response_store import ResponseStore
from headstart.server.threads import Threads
from headstart.text.chat_template import ChatTemplate
from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.find import find_format
from headstart.types import Vocab
from headstart.types.constraint import Constraint
from headstart.types.report import WorkerInfo
from headstart.types.sampling_params import SamplingParams
from headstart.types.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDefaults:
    """What a request gets that does not say."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None  # None: another one for each request
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    constraint: Constraint | None = None  # of answers whose requests demand none
    is_verbose: bool = False  # OpenAI's formats carry `__verbose`
    cache_prompt: bool = True
    embd_normalize: int = 2
    cache_reuse: int = 0
    num_keep: int = 0


@dataclass(frozen=True, slots=True)
class RerankForm:
    """How a query and a document become one prompt."""

    template: str | None = None  # the model's, with {query} and {document}
    start: tuple[int, ...] = ()  # tokens around the two, where there is no template
    middle: tuple[int, ...] = ()
    end: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The target model as the HTTP side sees it: its name, its text, its defaults."""

    alias: str
    vocab: Vocab
    template: ChatTemplate
    aliases: tuple[str, ...] = ()  # further names of it
    tags: tuple[str, ...] = ()
    chat: ChatDefaults = field(default_factory=ChatDefaults)
    defaults: RequestDefaults = field(default_factory=RequestDefaults)
    rerank: RerankForm = field(default_factory=RerankForm)
    # in force, JSON-ready, with the origin of each
    settings: Sequence[Mapping[str, Any]] = ()

    @property
    def answer_format(self) -> AnswerFormat:
        """How the model writes thoughts and tool calls."""
        return _format_of(self.template)


@lru_cache(maxsize=4)
def _format_of(template: ChatTemplate) -> AnswerFormat:
    return find_format(template)


@dataclass(slots=True)
class Service:
    """What the routes of one app share. `model` and `load_failure` are set once, by the loading
    task.
    """

    config: ServerConfig
    worker: Worker
    clock: Callable[[], float] = time.time
    started_at: float = 0.0
    model: ServedModel | None = None
    load_failure: str = ""
    # what makes a prompt waits for nothing but prompts; what only counts or shows has its own
    prompt_threads: Threads = field(default_factory=partial(Threads, "prompts", 4, 512))
    text_threads: Threads = field(default_factory=partial(Threads, "texts", 2, 64))
    responses: ResponseStore = field(default_factory=ResponseStore)
    corpora: CorpusReader = field(default_factory=CorpusReader)
    adapter_scales: tuple[float, ...] | None = None  # set while it runs; None: as it was started
    is_stopping: bool = False  # streams without an end of their own end now

    def __post_init__(self) -> None:
        self.started_at = self.clock()

    def why_not_ready(self, *, with_details: bool = True) -> str | None:
        """Why requests cannot be taken now; None when they can.

        Details may name files: they are for those who may use the server.
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
        """The model; routes run only when there is one."""
        assert self.model is not None
        return self.model

    @property
    def info(self) -> WorkerInfo:
        assert self.worker.info is not None
        return self.worker.info

    @property
    def fingerprint(self) -> str:
        """Changes when another model or another libllama answers."""
        parts = (self.info.system, self.info.target.path, str(self.info.target.size_bytes))
        return "headstart-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def service_of(request: HttpRequest) -> Service:
    """The service of the app that received this request."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
