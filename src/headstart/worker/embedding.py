"""Queue of texts to embed: short ones share a decode across requests.

Tenants and their requests take turns, so that thousands of texts do not block the others, and the
scheduler runs a step between decodes: generating requests wait for at most one decode.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headstart.scheduler.scheduler import WAIT_SECONDS
from headstart.structures.tenants import in_turns, may_take, tenant_of
from headstart.types.errors import CapacityError, EngineError, RequestError
from headstart.types.media import LoadedChunk
from headstart.types.report import Counters
from headstart.types.request import EmbeddingEvent, EmbeddingRequest, ErrorEvent, Event

if TYPE_CHECKING:
    from headstart.engine.embedding import LlamaEmbedder

log = logging.getLogger(__name__)

MAX_WAITING = 1 << 21  # tokens of one tenant
FEW_TOKENS = 128  # per decode while others generate
MANY_NUMBERS = 1 << 16  # of vectors sent at once: larger messages would block the pipe


@dataclass(slots=True, eq=False)
class _Texts:
    """A request in progress."""

    request: EmbeddingRequest
    submitted: float
    chunks: dict[int, LoadedChunk]  # by their first id
    vectors: list[NDArray[np.float32]] = field(default_factory=list)  # to be sent
    num_taken: int = 0  # texts passed to the engine, including the current one
    position: int = 0  # decoded tokens of a text that is split

    @property
    def tenant(self) -> str:
        return tenant_of(self.request.namespace)

    @property
    def places(self) -> int:
        """Its tokens, but no more than a tenant alone may fill."""
        return min(MAX_WAITING, self.request.num_tokens)

    @property
    def next_text(self) -> Sequence[int]:
        return self.request.texts[self.num_taken]

    @property
    def pending_chunk(self) -> LoadedChunk | None:
        """The next image of the current text, if that is split."""
        return self.chunks.get(self.request.texts[self.num_taken - 1][self.position])

    @property
    def is_taken(self) -> bool:
        return self.num_taken == len(self.request.texts)

    def add(self, vectors: NDArray[np.float32]) -> None:
        """Queue vectors of a text to be sent."""
        rows = max(1, MANY_NUMBERS // vectors.shape[1])
        self.vectors += [vectors[at : at + rows] for at in range(0, len(vectors), rows)]

    def take(self) -> tuple[NDArray[np.float32], ...]:
        """The next vectors to send."""
        sizes = np.cumsum([one.size for one in self.vectors])
        number = max(1, int(np.searchsorted(sizes, MANY_NUMBERS, "right")))
        taken, self.vectors = tuple(self.vectors[:number]), self.vectors[number:]
        return taken


class EmbeddingQueue:
    """Embedding requests of a worker. Owned by the engine's loop."""

    def __init__(
        self, engine: LlamaEmbedder, counters: Counters, clock: Callable[[], float]
    ) -> None:
        self.engine = engine
        self._counters = counters
        self._clock = clock
        self._jobs: deque[_Texts] = deque()
        self._held = Counter[str]()  # tokens of `_jobs`, by tenant
        self._long: _Texts | None = None  # the request whose current text is split
        self._events: list[Event] = []  # to be sent

    @property
    def has_work(self) -> bool:
        return bool(self._jobs)

    def submit(
        self, request: EmbeddingRequest, chunks: Mapping[int, LoadedChunk] | None = None
    ) -> None:
        """Queue a request; `chunks` has the images of its texts by their first id.

        Raises:
            RequestError: an image cannot be embedded.
            CapacityError: the queue is full.
        """
        if chunks and self.engine.why_no_media:
            raise RequestError(self.engine.why_no_media)
        chunks = dict(chunks or {})
        if any(chunk.num_cells > self.engine.max_batch_tokens for chunk in chunks.values()):
            raise RequestError(
                f"an image has more than {self.engine.max_batch_tokens} tokens, which are embedded "
                "at once; start with a larger --ubatch-size"
            )
        job, held = _Texts(request, self._clock(), chunks), self._held
        if not may_take(held, job.tenant, 2 * MAX_WAITING, job.places):
            raise CapacityError(f"{held.total()} tokens wait to be embedded; try again later")
        held[job.tenant] += job.places
        self._jobs.append(job)

    def cancel(self, request_id: str) -> None:
        for job in [one for one in self._jobs if one.request.request_id == request_id]:
            self._drop(job)

    def _drop(self, job: _Texts) -> None:
        self._jobs.remove(job)
        self._held -= Counter({job.tenant: job.places})
        for chunk in job.chunks.values():
            chunk.drop(job)
        if self._long is job:
            self._long = None

    def step(self, *, is_alone: bool) -> list[Event]:
        """Run one decode; returns the events. `is_alone`: no request generates."""
        if self._jobs:
            self._decode(is_alone=is_alone)
            self._finish()
        events, self._events = self._events, []
        return events

    def _decode(self, *, is_alone: bool) -> None:
        room = self.engine.max_batch_tokens
        group = self._group(room if is_alone else min(room, FEW_TOKENS))
        if not group and not self._long:  # all decoded, but not sent
            return
        chunk = self._long.pending_chunk if self._long else None
        if chunk is not None and not chunk.prepare(self._long):
            chunk.wait(WAIT_SECONDS if is_alone else 0.0)
            return
        began = self._clock()
        try:
            num_tokens = self._read(self._long) if self._long else self._embed(group)
        except EngineError as error:
            log.error("embedding failed: %s", error)
            failed = dict.fromkeys([self._long] if self._long else [job for job, _ in group])
            for job in failed:
                self._drop(job)
                self._events.append(ErrorEvent(job.request.request_id, error))
            return
        self._counters.embedded_tokens += num_tokens
        self._counters.prompt_tokens += num_tokens  # as in llama-server
        self._counters.prompt_seconds += self._clock() - began
        self._counters.num_decodes += 1
        if not self._long:
            self._jobs.rotate(-1)

    def _group(self, room: int) -> list[tuple[_Texts, int]]:
        """Texts for one decode, from requests in turn; empty if one is split."""
        group: list[tuple[_Texts, int]] = []
        left = (job for job in self._jobs if not job.is_taken)
        jobs = deque(in_turns(left, lambda job: job.tenant))
        while jobs and not self._long and len(group) < self.engine.max_batch_texts:
            job = jobs.popleft()
            length = len(job.next_text)
            has_media = bool(job.chunks) and min(job.next_text) < 0
            is_long = length > self.engine.max_batch_tokens or has_media
            if group and (is_long or length > room):
                continue
            if is_long:
                self._long = job
            else:
                group.append((job, job.num_taken))
                room -= length
                if len(job.request.texts) > job.num_taken + 1:
                    jobs.append(job)
            job.num_taken += 1
        return group

    def _embed(self, group: Sequence[tuple[_Texts, int]]) -> int:
        texts = [job.request.texts[index] for job, index in group]
        for (job, _), vectors in zip(group, self.engine.embed(texts), strict=True):
            job.add(vectors)
        return sum(map(len, texts))

    def _read(self, job: _Texts) -> int:
        """Decode the next piece of a text that is too long for one decode, or has images."""
        text, start = job.request.texts[job.num_taken - 1], job.position
        if (chunk := job.pending_chunk) is not None:
            piece = text[start : start + chunk.num_cells]
        else:
            piece = text[start : start + self.engine.max_batch_tokens]
            piece = list(takewhile(lambda token: token >= 0, piece))
        job.position = start + len(piece)
        is_end = job.position == len(text)
        for vectors in self.engine.embed([piece], start, chunk=chunk, is_end=is_end):
            job.add(vectors)
        if is_end:
            job.position, self._long = 0, None
        return len(piece)

    def _finish(self) -> None:
        """Send vectors that are complete, or enough for a message."""
        now = self._clock()
        for job in list(self._jobs):
            is_read = job.is_taken and job is not self._long
            if not is_read and sum(one.size for one in job.vectors) < MANY_NUMBERS:
                continue
            vectors = job.take()
            is_last = is_read and not job.vectors
            name, num_tokens = job.request.request_id, job.request.num_tokens
            seconds = now - job.submitted
            self._events.append(EmbeddingEvent(name, vectors, num_tokens, seconds, is_last))
            if is_last:
                self._drop(job)
                self._counters.embedding_requests += 1
