"""Texts wait for vectors: they share decodes, take turns, and fail alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.harness import Clock
from tests.pictures import FakeChunk
from tests.planted import noted

from headstart.types.errors import CapacityError, EngineError
from headstart.types.media import LoadedChunk, MediaChunk
from headstart.types.report import Counters
from headstart.types.request import (
    EmbeddingEvent,
    EmbeddingRequest,
    ErrorEvent,
    Event,
    RequestStats,
)
from headstart.worker import embedding
from headstart.worker.embedding import EmbeddingQueue


class FakeEmbedder:
    """A text's vector is its sum and its length; remembers what shared a decode."""

    why_no_media, max_batch_tokens, max_batch_texts = "", 10, 3

    def __init__(self) -> None:
        self.calls: list[list[list[int]]] = []
        self.failing: Sequence[int] = ()
        self._read: list[int] = []

    def embed(
        self,
        texts: Sequence[Sequence[int]],
        position: int = 0,
        *,
        chunk: LoadedChunk | None = None,
        is_end: bool = True,
    ) -> list[NDArray[np.float32]]:
        assert sum(map(len, texts)) <= self.max_batch_tokens
        self.calls.append([list(text) for text in texts])
        if any(token in self.failing for text in texts for token in text):
            raise EngineError("no")
        self._read = [*self._read, *texts[0]] if position else list(texts[0])
        assert len(self._read) == position + len(texts[0])
        whole = [self._read] if len(texts) == 1 else texts
        rows = [np.array([[sum(text), len(text)]], np.float32) for text in whole]
        return rows if is_end else []


@pytest.fixture
def engine() -> FakeEmbedder:
    return FakeEmbedder()


@pytest.fixture
def queue(engine: FakeEmbedder) -> EmbeddingQueue:
    return EmbeddingQueue(engine, Counters(), lambda: 0.0)


def finish(queue: EmbeddingQueue, *, is_alone: bool = True) -> list[Event]:
    events: list[Event] = []
    while queue.has_work:
        events += queue.step(is_alone=is_alone)
    return events


def vectors(event: Event) -> list[list[float]]:
    assert isinstance(event, EmbeddingEvent)
    return [rows[0].tolist() for rows in event.vectors]


def test_texts_of_several_requests_share_a_decode(queue: EmbeddingQueue, engine: FakeEmbedder):
    queue.submit(EmbeddingRequest("a", ((1, 2), (3,))))
    queue.submit(EmbeddingRequest("b", ((4, 5, 6),)))
    events = {event.request_id: vectors(event) for event in finish(queue)}
    assert engine.calls == [[[1, 2], [4, 5, 6], [3]]]
    assert events == {"a": [[3, 2], [3, 1]], "b": [[15, 3]]}


@pytest.mark.parametrize("texts", [((1, 2), (5, -2, -3)), ((5, -2, -3), (1, 2))])
@pytest.mark.parametrize("num_requests", [1, 2])
def test_a_text_beside_one_with_an_image_has_its_vector(queue: EmbeddingQueue, texts, num_requests):
    image = FakeChunk(MediaChunk(b"", 2), 0, is_whole=True)
    requests = [texts] if num_requests == 1 else [(text,) for text in texts]
    for number, some in enumerate(requests):
        queue.submit(EmbeddingRequest(f"{number}", some), {-2: image})
    found = [vector for event in finish(queue) for vector in vectors(event)]
    assert sorted(found) == sorted([[3, 2], [0, 3]])


def test_vectors_are_told_while_a_text_waits_for_its_image(queue: EmbeddingQueue, monkeypatch):
    monkeypatch.setattr(embedding, "MANY_NUMBERS", 2)
    queue.submit(EmbeddingRequest("a", ((1,), (2,), (3,))))
    image = FakeChunk(MediaChunk(b"", 2), 10**6, is_whole=True)
    queue.submit(EmbeddingRequest("b", ((5, -2, -3),)), {-2: image})
    told = [vectors(event) for _ in range(9) for event in queue.step(is_alone=True)]
    assert told == [[[1, 1]], [[2, 1]], [[3, 1]]]


def test_embedding_texts_makes_no_other_request_longer(engine: FakeEmbedder) -> None:
    counters = Counters()
    queue = EmbeddingQueue(engine, counters, Clock())
    counters.add_request(RequestStats(prompt_seconds=1.0, generation_seconds=2.0))
    queue.submit(EmbeddingRequest("a", ((1, 2), (3,))))
    finish(queue)
    assert counters.prompt_seconds > 1.0  # as in llama-server
    assert counters.mean_seconds == 3.0


def test_requests_take_turns(queue: EmbeddingQueue) -> None:
    queue.submit(EmbeddingRequest("long", tuple((1,) * 8 for _ in range(20))))
    queue.submit(EmbeddingRequest("short", ((2,) * 8,)))
    order = [event.request_id for event in finish(queue)]
    assert order == ["short", "long"]


def test_a_text_longer_than_a_decode_is_read_in_pieces(queue: EmbeddingQueue, engine: FakeEmbedder):
    queue.submit(EmbeddingRequest("a", (tuple(range(25)), (1,))))
    queue.submit(EmbeddingRequest("b", ((7,),)))
    events = {event.request_id: event for event in finish(queue)}
    assert [len(call[0]) for call in engine.calls][:3] == [10, 10, 5]
    assert vectors(events["a"]) == [[300, 25], [1, 1]]
    assert vectors(events["b"]) == [[7, 1]]


def test_many_vectors_are_told_in_pieces(queue: EmbeddingQueue, monkeypatch) -> None:
    """All at once, they would fill the pipe, and the engine would wait until they are read."""
    monkeypatch.setattr(embedding, "MANY_NUMBERS", 6)
    queue.submit(EmbeddingRequest("a", tuple((number,) for number in range(7))))
    events = finish(queue)
    assert [vectors(event) for event in events] == [
        [[0, 1], [1, 1], [2, 1]], [[3, 1], [4, 1], [5, 1]], [[6, 1]]
    ]  # fmt: skip
    assert [isinstance(one, EmbeddingEvent) and one.is_last for one in events] == [
        False,
        False,
        True,
    ]


def test_many_vectors_of_one_text_are_told_in_pieces(queue, engine, monkeypatch) -> None:
    monkeypatch.setattr(embedding, "MANY_NUMBERS", 6)
    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    monkeypatch.setattr(engine, "embed", lambda texts, *place, **more: [rows for _ in texts])
    queue.submit(EmbeddingRequest("a", ((1,), (2,))))
    events = [event for event in finish(queue) if isinstance(event, EmbeddingEvent)]
    assert [event.is_last for event in events] == [False] * (len(events) - 1) + [True]
    assert max(sum(one.size for one in event.vectors) for event in events) <= 6
    found = np.concatenate([one for event in events for one in event.vectors])
    assert found.tolist() == [*rows.tolist(), *rows.tolist()]


def test_beside_those_who_generate_a_decode_is_small(queue, engine, monkeypatch) -> None:
    monkeypatch.setattr(embedding, "FEW_TOKENS", 4)
    queue.submit(EmbeddingRequest("a", ((1, 1, 1), (2, 2, 2), (3,) * 9)))
    finish(queue, is_alone=False)
    assert [len(call) for call in engine.calls] == [1, 1, 1]


def test_a_failed_decode_fails_its_requests_alone(queue: EmbeddingQueue, engine: FakeEmbedder):
    engine.failing = (9,)
    queue.submit(EmbeddingRequest("bad", ((9,) * 10, (1,))))
    queue.submit(EmbeddingRequest("good", ((1,) * 8,)))
    events = {event.request_id: event for event in finish(queue)}
    assert isinstance(events["bad"], ErrorEvent)
    assert vectors(events["good"]) == [[8, 8]]


@pytest.mark.parametrize("num_steps", [0, 1])
def test_a_cancelled_request_is_forgotten(queue: EmbeddingQueue, num_steps: int) -> None:
    queue.submit(EmbeddingRequest("a", (tuple(range(25)),)))
    for _ in range(num_steps):
        assert queue.step(is_alone=True) == []
    queue.cancel("a")
    queue.cancel("unknown")
    assert not queue.has_work
    queue.submit(EmbeddingRequest("b", ((5,) * 12,)))
    assert [vectors(event) for event in finish(queue)] == [[[60, 12]]]


def test_a_tenant_with_much_to_embed_holds_up_no_other(queue, engine, monkeypatch) -> None:
    monkeypatch.setattr(embedding, "MAX_WAITING", 50)
    looks = noted(monkeypatch, embedding, "tenant_of")
    for number in range(10):
        queue.submit(EmbeddingRequest(f"a{number}", ((1,) * 5,), "a"))
    assert len(looks) <= 20  # not at those that wait
    with pytest.raises(CapacityError, match="50 tokens wait"):
        queue.submit(EmbeddingRequest("a", ((1,),), "a lora"))
    queue.submit(EmbeddingRequest("b", ((7,) * 5,), "b"))
    with pytest.raises(CapacityError):  # more than is left for one of three
        queue.submit(EmbeddingRequest("c", ((7,) * 50,), "c"))
    events = finish(queue)
    assert [7] * 5 in engine.calls[0]
    assert {vectors(event)[0][0] for event in events} == {5, 35}
    assert len(events) == 11


def test_a_request_beyond_all_limits_leaves_room_for_other_tenants(queue, monkeypatch) -> None:
    monkeypatch.setattr(embedding, "MAX_WAITING", 50)
    queue.submit(EmbeddingRequest("a", ((1,) * 5,) * 100, "a"))
    for tenant in "bcd":
        queue.submit(EmbeddingRequest(tenant, ((7,) * 5,), tenant))
    assert len(finish(queue)) == 4
