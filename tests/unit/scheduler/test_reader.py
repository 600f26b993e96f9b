"""Items of any size come out of the pipe whole, in order, and its end is told once."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence

import pytest

from headstart.types.report import WorkerReport
from headstart.types.request import (
    FinishEvent,
    RequestStats,
    StepTokens,
    TokenEvent,
    TokenLogprob,
    VerifiedDraft,
)
from headstart.worker.messages import Message
from headstart.worker.reader import ItemReader, write_item


async def read_all(writes: Sequence[object], *, cut: int | None = None) -> list[object]:
    """What a reader takes of these items, then "end"; `cut`: bytes that are written at a time."""
    source, sink = os.pipe()
    taken: list[object] = []
    is_over = asyncio.Event()

    def on_end() -> None:
        taken.append("end")
        is_over.set()

    def write() -> None:
        if cut is None:
            for item in writes:
                write_item(sink, item)
        else:
            whole_source, whole_sink = os.pipe()
            for item in writes:
                write_item(whole_sink, item)
            os.close(whole_sink)
            while data := os.read(whole_source, cut):
                os.write(sink, data)
                threading.Event().wait(0.001)
            os.close(whole_source)
        os.close(sink)

    ItemReader(source, taken.append, on_end).start()
    writer = threading.Thread(target=write)
    writer.start()
    await asyncio.wait_for(is_over.wait(), 10)
    await asyncio.sleep(0.02)  # an end that is told twice would come now
    writer.join()
    os.close(source)
    return taken


@pytest.mark.parametrize("cut", [None, 1, 7, 9])
async def test_items_arrive_whole_and_in_order_however_they_were_cut(cut: int | None) -> None:
    items: list[object] = ["a", (1, None, b"\0" * 20), None, {"key": [1.5]}]
    assert await read_all(items, cut=cut) == [*items, "end"]


async def test_messages_arrive_with_all_their_fields() -> None:
    draft = VerifiedDraft((5, 6), ("suffix", "suffix"), (0.5, None), 1.5, 0.25)
    logprobs = (TokenLogprob(5, -0.5, ((5, -0.5), (7, -1.0))),)
    columns = ["b", "a"], [-1, 3], [b"z", b"xy"], [0, 2], [5, 6], ["suffix", ""]
    tokens = StepTokens(*columns, {1: logprobs}, {1: draft})
    end = FinishEvent("a", "word", RequestStats(num_emitted=2), "stop", truncated=True)
    items = [Message([tokens, end], WorkerReport(num_waiting=2)), Message([tokens])]
    assert await read_all(items) == [*items, "end"]
    assert tokens.events() == [
        TokenEvent("b", (), b"z", ()),
        TokenEvent("a", (5, 6), b"xy", ("suffix", ""), logprobs, draft, 3),
    ]


async def test_an_item_may_be_larger_than_a_pipe() -> None:
    items = [os.urandom(3_000_000), "next"]
    assert await read_all(items) == [*items, "end"]


async def test_the_loop_runs_on_while_nothing_comes() -> None:
    source, sink = os.pipe()
    taken: list[object] = []
    reader = ItemReader(source, taken.append, lambda: None)
    reader.start()
    os.write(sink, b"\5\0")  # a part of an item's size
    await asyncio.sleep(0.01)
    assert taken == []
    reader.stop()
    write_item(sink, "unheard")
    await asyncio.sleep(0.01)
    assert taken == []
    os.close(sink)
    os.close(source)


async def test_an_item_that_cannot_be_taken_does_not_hold_up_those_behind_it() -> None:
    source, sink = os.pipe()
    taken: list[object] = []

    def take(item: object) -> None:
        taken.append(item)
        if item == "bad":
            raise ValueError(item)

    reader = ItemReader(source, take, lambda: None)
    write_item(sink, "bad")
    write_item(sink, "good")
    reader.start()
    await asyncio.sleep(0.02)
    reader.stop()
    os.close(sink)
    os.close(source)
    assert taken == ["bad", "good"]
