"""GET /events and provenance: the state as a stream, and who guessed each token."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.fake_worker import REPORT, FakeWorker, say
from tests.server.serving import error_of, events_of, serving

from headstart.config import ServerConfig
from headstart.server import sse, status_events
from headstart.server.answer_numbers import counterfactual
from headstart.server.service import Service
from headstart.server.status_events import _speed, num_tokens
from headstart.structures.tenants import Caller
from headstart.types.errors import CapacityError
from headstart.types.report import Counters, DiskReport, SlotReport, WorkerReport
from headstart.types.request import Request, TokenEvent, VerifiedDraft


def states(client: httpx2.Client, count: int) -> list[dict]:
    found = []
    with client.stream("GET", "/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
            if len(found) == count:
                break
    return found


def test_the_state_has_slots_queue_speculation_and_memory(client):
    (state,) = states(client, 1)
    assert state["status"] == "ready"
    assert state["num_draft_tokens"] >= state["num_accepted_draft_tokens"] >= 0
    assert [slot["id"] for slot in state["slots"]] == [0, 1]
    assert state["slots"] == client.get("/slots").json()
    assert state["memory_bytes"]["server"] > 2**20
    shown = client.get("/props").json()["speculation"]
    assert state["speculation"] == {name: shown[name] for name in state["speculation"]}
    assert set(state["seconds"]) == {"target", "drafts", "other"}


def test_the_state_has_the_prompts_that_are_kept_and_how_often_they_were_used() -> None:
    worker, disk = FakeWorker(), DiskReport(folder="/prompts", num_prompts=3, num_restored=2)
    worker.current_report = replace(
        REPORT,
        counters=Counters(prompts_restored=4),
        prompts_in_memory=5,
        prompt_bytes_in_memory=6,
        disk=disk,
    )
    with serving(worker) as client:
        (state,) = states(client, 1)
        assert state["prompts_on_disk"] == client.get("/props").json()["prompts_on_disk"]
    assert state["prompts_on_disk"] == asdict(disk)
    kept = {"num_prompts": 5, "num_bytes": 6, "num_restored": 4}
    assert state["prompts_in_memory"] == kept


def test_a_state_comes_at_once_and_others_follow_every_two_seconds(monkeypatch):
    assert status_events.SECONDS == 2.0
    monkeypatch.setattr(status_events, "SECONDS", 0.3)
    with serving() as client:
        first, second, third = states(client, 3)
    assert "history" in first
    assert "history" not in second
    assert third["time"] - second["time"] > 0.2


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """States have only a number and come faster; the numbers of those made so far."""
    numbers: list[int] = []

    def state(*args: object) -> dict[str, int]:
        numbers.append(len(numbers))
        return {"n": numbers[-1]}

    monkeypatch.setattr(status_events, "_state", state)
    monkeypatch.setattr(status_events, "SECONDS", 0.2)
    return numbers


def test_a_state_is_made_once_for_all_listeners(made):
    with serving() as client, ThreadPoolExecutor(20) as threads:
        results = list(threads.map(lambda _: states(client, 5), range(20)))
    # each has a first one of its own; all see the same ones then
    later = {state["n"] for seen in results for state in seen[1:]}
    assert len(made) <= 20 + len(later) + 2
    assert len(later) < 40


def test_states_are_made_only_while_somebody_listens(made):
    with serving() as client:
        states(client, 1)
        time.sleep(0.5)  # a connection that closed is noticed at the next state
        number = len(made)
        time.sleep(0.5)
        assert len(made) == number
        states(client, 1)
        assert len(made) > number


def test_a_server_that_stops_ends_the_streams_at_once():
    async def listen() -> list[object]:
        listeners = sse.Broadcast()
        scope = {"headstart.caller": Caller(), "path": "/events"}
        stream = aiter(listeners.response(scope).body_iterator)
        seen = await anext(stream)
        listeners.close()
        late = aiter(listeners.response(scope).body_iterator)
        return [seen, *[one async for one in stream], *[one async for one in late]]

    assert len(asyncio.run(asyncio.wait_for(listen(), 5))) == 2  # what each begins with


def test_a_listener_that_is_slow_skips_states() -> None:
    async def listen() -> list[bytes]:
        listeners = Service(ServerConfig(), FakeWorker()).listeners
        scope = {"headstart.caller": Caller(), "path": "/events"}
        stream = aiter(listeners.response(scope).body_iterator)
        await anext(stream)
        for number in range(1000):
            listeners.tell(number)
        seen = [await anext(stream)]
        listeners.close()
        listeners.tell(1000)  # before the listener has read that this is the end
        return [*seen, *[one async for one in stream]]

    assert asyncio.run(asyncio.wait_for(listen(), 5)) == [sse.event(999)]


def test_listeners_are_limited_and_make_room_when_they_leave(monkeypatch):
    monkeypatch.setattr(sse, "MAX_LISTENERS", 2)
    with serving() as client:
        with client.stream("GET", "/events"), client.stream("GET", "/events") as second:
            refused = client.get("/events")
            assert "2 clients listen to /events" in error_of(refused, 503, "unavailable_error")
            assert refused.headers["retry-after"]
            assert client.get("/health").status_code == 200
            assert next(second.iter_lines()).startswith("data: ")
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with client.stream("GET", "/events") as response:
                if response.status_code == 200:
                    return
            time.sleep(0.1)
        pytest.fail("listeners that left still count")


def test_listeners_that_come_at_once_are_limited_and_one_whose_stream_never_begins_makes_room():
    async def listen() -> None:
        listeners, scope = sse.Broadcast(), {"headstart.caller": Caller(), "path": "/events"}
        begun = [listeners.response(scope) for _ in range(sse.MAX_LISTENERS)]
        with pytest.raises(CapacityError, match="clients listen to"):
            listeners.response(scope)
        del begun[0]
        listeners.response(scope)

    asyncio.run(listen())


def test_speed_is_that_since_counts_a_second_old_and_never_below_nothing():
    past = [{"time": time, "tokens": 10 * time} for time in (0.0, 2.0, 4.0)]
    assert _speed(past, {"time": 6.0, "tokens": 100.0}) == 30.0
    assert _speed(past, {"time": 4.5, "tokens": 45.0}) == 10.0  # not of half a second
    assert _speed(past, {"time": 6.0, "tokens": 0.0}) == 0.0  # the engine was started again
    assert _speed([], {"time": 6.0, "tokens": 100.0}) == 0.0


def test_running_answers_count_as_tokens():
    busy = SlotReport(slot_id=0, is_processing=True, num_emitted=7)
    report = replace(WorkerReport(), slots=(busy, SlotReport(slot_id=1)))
    assert num_tokens(report) == 7
    assert num_tokens(replace(report, counters=REPORT.counters)) == (
        7 + REPORT.counters.tokens_predicted
    )


def guessed(request: Request) -> list:
    """Two steps: a draft of three of which one is right, then a plain one."""
    draft = VerifiedDraft((72, 73, 74), ("suffix", "suffix", "draft-model"), (0.9, 0.5, None), 4, 1)
    plain = VerifiedDraft((), (), (), 3.0, 0.0)
    first, second, end = say(request, b"H\xc3", b"\xb6")
    if request.wants_provenance:
        first = replace(first, sources=("suffix", ""), step=draft)
        second = replace(second, step=plain)
    assert isinstance(first, TokenEvent)
    return [first, second, end]


TOKENS = [
    {"id": 72, "piece": "H", "source": "suffix", "position": 0, "chance": 0.9, "step": 0},
    {"id": 0xC3, "piece": [0xC3], "source": "", "position": None, "chance": None, "step": 0},
    {"id": 0xB6, "piece": [0xB6], "source": "", "position": None, "chance": None, "step": 1},
]
FIRST_STEP = {
    "rows": 4,
    "rows_wasted": 2,
    "target_ms": 4,
    "draft_ms": 1,
    "draft": [
        {"id": 72, "piece": "H", "source": "suffix", "chance": 0.9},
        {"id": 73, "piece": "I", "source": "suffix", "chance": 0.5},
        {"id": 74, "piece": "J", "source": "draft-model", "chance": None},
    ],
}
CALLS = [
    ("/completion", {"prompt": "a"}),
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
]


OFFERS = ("suffix", (72, 0xC3, 1)), ("draft-model", (73,))
ALONE = {
    "suffix": {"offers": 1, "steps": 1, "accepted": 2, "mean_acceptance_length": 3.0},
    "draft-model": {"offers": 1, "steps": 3, "accepted": 0, "mean_acceptance_length": 1.0},
}


@pytest.mark.parametrize(("route", "body"), CALLS[1:])
def test_what_a_speculator_alone_would_have_given_is_told_with_the_provenance(
    client, worker, route, body
):
    def offered(request: Request) -> list:
        first, *rest = guessed(request)
        step = first.step and replace(first.step, offers=OFFERS)
        return [replace(first, step=step), *rest]

    worker.script, wish = offered, body | {"provenance": True}
    assert client.post(route, json=wish).json()["counterfactual"] == ALONE
    *_, last = events_of(client.post(route, json=wish | {"stream": True}))
    assert last["counterfactual"] == ALONE
    assert "counterfactual" not in client.post(route, json=body).json()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=9))
def test_a_speculator_that_drafted_alone_would_have_given_what_it_gave(steps):
    emissions = []
    for number, (num_right, num_wrong) in enumerate(steps):
        tokens = tuple(range(10 * number, 10 * number + num_right + 1))
        offer = (*tokens[:num_right], *[-1] * num_wrong)
        offers = (("suffix", offer),) if offer else ()
        step = VerifiedDraft((), (), (), 0.0, 0.0, offers)
        emissions.append((number, TokenEvent("", tokens, b"", ("",) * len(tokens), step=step)))
    alone = counterfactual([emissions]).get("suffix")
    if alone is not None:
        assert (alone["steps"], alone["accepted"]) == (len(steps), sum(n for n, _ in steps))


@pytest.mark.parametrize(("route", "body"), CALLS)
def test_provenance_says_who_guessed_and_what_was_rejected(client, worker, route, body):
    worker.script = guessed
    answer = client.post(route, json=body | {"provenance": True}).json()
    whole = answer.get("choices", [answer])[0]["provenance"]
    assert whole["tokens"] == TOKENS
    assert whole["steps"][0] == FIRST_STEP
    assert whole["steps"][1]["rows"] == 1
    chunks = events_of(client.post(route, json=body | {"provenance": True, "stream": True}))
    parts = [chunk.get("choices", [chunk]) for chunk in chunks]
    parts = [part[0]["provenance"] for part in parts if part and "provenance" in part[0]]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    assert [step for part in parts for step in part["steps"]] == whole["steps"]
    # nothing is said, or asked of the engine, without a wish
    assert "provenance" not in client.post(route, json=body).text
    assert not worker.requests[-1].wants_provenance
