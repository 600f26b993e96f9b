"""Responses kept for later requests: which are dropped, and how they are weighed."""

from __future__ import annotations

import httpx2
import pytest
from tests.planted import noted, threads_of

from headstart.server import responses
from headstart.server.responses import ResponseStore, StoredResponse


def stored(number: int, size: int = 10) -> StoredResponse:
    response = {"id": f"resp_{number}", "output": []}
    return StoredResponse(response, [], rest_bytes=size + 45)


def test_a_store_forgets_what_was_used_longest_ago() -> None:
    store = ResponseStore(max_bytes=120)
    store.put("", stored(1))
    store.put("", stored(2))
    assert store.get("", "resp_1")
    store.put("", stored(3))
    assert [bool(store.get("", f"resp_{i}")) for i in (1, 2, 3)] == [True, False, True]


def test_a_store_is_bounded_in_bytes() -> None:
    store = ResponseStore(max_bytes=1100)
    for number in range(20):
        store.put("", stored(number, 300))
        store.put("", stored(number, 300))  # once more, counted once
    assert len(store._stored) == 3  # of 345 bytes
    store.put("", stored(99, 5000))
    assert len(store._stored) == 0
    store.put("", stored(1, 300))
    assert len(store._stored) == 1


def test_a_tenant_pushes_out_only_its_own() -> None:
    store = ResponseStore(max_bytes=550)
    store.put("quiet", stored(0))
    for number in range(1000):
        store.put("loud", stored(number))
    assert store.get("quiet", "resp_0")
    assert [bool(store.get("loud", f"resp_{i}")) for i in (989, 990)] == [False, True]


def test_many_tenants_share_the_space_fairly() -> None:
    store = ResponseStore(max_bytes=4000)
    store.put("quiet", stored(0, 400))
    for number in range(200):
        store.put(f"loud-{number % 20}", stored(number, 400))
    assert store.get("quiet", "resp_0")
    assert 20 < len(store._stored) <= 40


def test_each_turn_of_a_conversation_is_counted_once(client: httpx2.Client, monkeypatch) -> None:
    calls = noted(monkeypatch, ResponseStore, "put")
    before = None
    for text in ("a" * 100, "b" * 100, "ü" * 50):
        body = {"input": text, "previous_response_id": before}
        before = client.post("/v1/responses", json=body).json()["id"]
    first, second, third = [stored.num_bytes for _, _, stored in calls]
    assert second - first == third - second > 100


def test_the_input_is_weighed_before_the_answer_off_the_event_loop(client, monkeypatch) -> None:
    weighing = threads_of(monkeypatch, responses, "json_bytes")
    client.post("/v1/responses", json={"input": "Hi"})
    assert weighing
    assert all("prompts" in one for one in weighing)


def test_what_a_response_tells_beside_its_items_is_not_counted_again_for_the_next(
    client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = noted(monkeypatch, ResponseStore, "put")
    first = {"input": "Hi" * 100, "metadata": {"a": "x" * 10_000}}
    before = client.post("/v1/responses", json=first).json()["id"]
    client.post("/v1/responses", json={"input": "Hi", "previous_response_id": before})
    first_size, second_size = [stored.num_bytes - 8192 for _, _, stored in calls]
    assert first_size > 10_000 > second_size > 200


@pytest.mark.parametrize(
    "field",
    [
        {"reasoning": {"effort": "x" * 10_000}},
        {"tool_choice": {"type": "function", "name": "f", "more": "x" * 10_000}},
        {"metadata": {"a": [[]] * 5000}},
        {"input": [{"role": "user", "content": "Hi", "more": [{}] * 5000}]},
    ],
)
def test_all_that_a_response_keeps_is_counted(client: httpx2.Client, monkeypatch, field) -> None:
    calls = noted(monkeypatch, ResponseStore, "put")
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    client.post("/v1/responses", json={"input": "Hi", "tools": tools, **field})
    [(_, _, stored)] = calls
    assert stored.num_bytes - 8192 > 10_000
