"""A fleet of replicas that only exist on paper: who gets what, over many requests, by what is read
of bodies and answers.
"""

from __future__ import annotations

import base64
from collections import Counter, deque

import orjson
import pytest

from headstart.gateway.balancer.conversation import Asked, Timings, block_hashes, read, timings_of
from headstart.gateway.balancer.fleet import Fleet, Flight, Replica
from headstart.gateway.balancer.policy import TOKEN_SLOWDOWN, Load, Prices
from headstart.gateway.proxy import Backend


def make_fleet(num_replicas: int = 3) -> Fleet:
    fleet = Fleet()
    for i in range(num_replicas):
        fleet.add(Backend(name=f"r{i}", url=f"http://r{i}"))
    return fleet


def chat(*contents: str, **fields: object) -> Asked:
    roles = ["user", "assistant"] * len(contents)
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    return read(orjson.dumps({"messages": messages, **fields}))


def answer(fleet: Fleet, asked: Asked) -> str:
    """Ask and answer at once; the replica's name."""
    replica = fleet.order(asked)[0]
    cached = replica.prefixes.match(asked.blocks) // 4
    flight = fleet.start(replica, asked)
    num_read = len(asked.text) // 4 - cached
    timings = Timings(cached, num_read, num_read, predicted_n=51, predicted_ms=1000)
    fleet.finish(flight, timings)
    return replica.name


def test_turns_of_a_conversation_stay_together_and_conversations_spread():
    fleet, homes = make_fleet(), {}
    for turn in range(4):
        for i in range(30):
            contents = [f"{i} says {j} " + "x" * 400 for j in range(2 * turn + 1)]
            home = answer(fleet, chat(*contents))
            assert homes.setdefault(i, home) == home
    assert min(Counter(homes.values()).values()) >= 4


def test_an_answer_counts_as_read_where_it_was_written():
    fleet, first = make_fleet(2), chat("question")
    home = fleet.order(first)[0]
    flight = fleet.start(home, first)
    fleet.finish(flight, Timings(prompt_n=len(first.text) / 4, predicted_n=500))
    busy = fleet.start(home, chat("another " * 100))  # its prompt is shorter than that answer
    asked = chat("question", "answer " * 300, "and then?", max_tokens=8)
    assert fleet.order(asked)[0] is home
    fleet.finish(busy, None)


@pytest.mark.parametrize("num_instructions", [0, 20])
def test_an_answer_counts_as_read_only_after_its_own_prompt_and_until_a_restart(num_instructions):
    fleet = make_fleet(1)
    (home,) = fleet.replicas.values()
    home.hear(Load(), "first start")
    system = "the same long instructions " * num_instructions

    def ask(*contents: str) -> Asked:
        return chat(system, "yes", *contents, prompt_cache_key="of an application")

    first = ask("question")
    flight = fleet.start(home, first)
    fleet.finish(flight, Timings(prompt_n=len(first.text) / 4, predicted_n=2000))
    assert fleet._num_unread(home, ask("question", "answer " * 300, "and then?")) == 0.0
    assert fleet._num_unread(home, ask("another", "answer " * 300, "and then?")) > 500
    home.hear(Load(), "second start")
    assert fleet._num_unread(home, ask("question", "answer " * 300, "and then?")) > 500


def test_a_prefix_that_all_share_does_not_send_all_to_one_replica():
    fleet, sent = make_fleet(), Counter()
    running: deque[Flight] = deque()
    for i in range(120):
        asked = chat("the same long instructions " * 200 + f"question {i}")
        replica = fleet.order(asked)[0]
        running.append(fleet.start(replica, asked))
        sent[replica.name] += 1
        if len(running) > 12:  # four for each replica
            done = running.popleft()
            fleet.finish(done, None)
    assert min(sent.values()) > 20


def test_a_replica_that_drains_or_is_ill_gets_nothing():
    fleet = make_fleet()
    fleet.replicas["r0"].is_draining = True
    fleet.replicas["r1"].lose("connection refused")
    assert {answer(fleet, chat(f"question {i}")) for i in range(20)} == {"r2"}
    fleet.replicas["r1"].hear(Load())
    assert {one.name for one in fleet.available()} == {"r1", "r2"}


def test_a_restarted_replica_is_believed_to_know_nothing():
    replica = Replica(Backend(name="a", url="http://a"))
    blocks = block_hashes(b"a long text" * 100)
    replica.hear(Load(), "1")
    replica.prefixes.add(blocks)
    replica.hear(Load(), "1")
    assert replica.prefixes.match(blocks) > 1000
    replica.hear(Load(), "2")
    assert replica.prefixes.match(blocks) == 0


def test_what_was_sent_since_the_last_report_counts_and_is_not_counted_twice():
    fleet = make_fleet(1)
    replica, asked = fleet.replicas["r0"], chat("question")
    flights = [fleet.start(replica, asked) for _ in range(3)]
    assert replica.load().num_running == 3
    replica.hear(Load(num_slots=2, num_running=2, num_waiting=3))  # two are another router's
    assert (replica.load().num_running, replica.load().num_waiting) == (2, 3)
    for flight in flights:
        fleet.finish(flight, None)
    assert replica.load().num_running + replica.load().num_waiting == 2


def test_requests_that_ended_while_a_report_was_made_are_not_taken_for_others():
    fleet = make_fleet(1)
    replica = fleet.replicas["r0"]
    for flight in [fleet.start(replica, chat("question")) for _ in range(3)]:
        fleet.finish(flight, None)
    late = Load(num_slots=2, num_running=2, num_waiting=1)
    replica.hear(late)
    assert replica.load().num_running + replica.load().num_waiting == 0
    replica.hear(late)  # by now they are another router's
    assert replica.load().num_running + replica.load().num_waiting == 3


def test_a_replica_is_full_when_all_are():
    fleet = make_fleet(2)
    fleet.replicas["r0"].hear(Load(num_slots=1, num_running=1, num_waiting=8))
    assert not fleet.is_full(8)
    fleet.replicas["r1"].hear(Load(num_slots=1, num_running=1, num_waiting=9))
    assert fleet.is_full(8)
    assert not fleet.is_full(9)
    assert fleet.wait_seconds() > 0


def test_prices_follow_what_answers_say():
    prices = Prices()
    for _ in range(60):
        timings = Timings(prompt_n=1000, prompt_ms=200, predicted_n=101, predicted_ms=5000)
        prices.learn(timings, 0, 0)
    assert abs(prices.prompt_token - 2e-4) < 2e-5
    assert abs(prices.token - 0.05) < 0.005
    assert abs(prices.request - 5.2) < 0.2


def test_a_replica_that_was_never_asked_is_taken_for_one_like_the_others():
    fleet, asked = make_fleet(3), chat("question")
    fast, slow, new = fleet.replicas.values()
    for _ in range(60):
        for replica, ms in ((fast, 10), (slow, 1000)):
            fleet.finish(fleet.start(replica, asked), Timings(prompt_n=1000, prompt_ms=ms))
    cheap, dear, unknown = (one.prices.prompt_token for one in (fast, slow, new))
    assert cheap < 2e-4
    assert dear > 8e-4
    assert cheap < unknown < dear


def test_a_replica_that_comes_later_gets_its_half():
    fleet = make_fleet(1)
    for i in range(60):
        fleet.finish(fleet.start(fleet.replicas["r0"], chat(f"{i}")), Timings(0, 8, 4, 60, 60))
    fleet.add(Backend(name="new", url="http://new"))
    sent = Counter[str]()
    for i in range(8):
        asked = chat(f"question {i}")
        sent[fleet.start(fleet.order(asked)[0], asked).replica.name] += 1
    assert sent == {"r0": 4, "new": 4}


def test_an_answer_of_a_replica_that_went_teaches_the_others():
    fleet = make_fleet(2)
    flight = fleet.start(fleet.replicas.pop("r0"), chat("question"))
    fleet.finish(flight, Timings(prompt_n=1000, prompt_ms=10))
    assert fleet.replicas["r1"].prices.prompt_token < Prices().prompt_token


def test_a_replica_that_was_slow_once_gets_another_chance():
    fleet = make_fleet(2)
    for replica, ms in zip(fleet.replicas.values(), (10, 10_000), strict=True):
        for _ in range(20):
            replica.prices.learn(Timings(prompt_n=100, prompt_ms=ms), 0, 0)
    fleet.start(fleet.replicas["r0"], chat("a request that runs all the time"))
    homes = [answer(fleet, chat(f"question {i} " + "x" * 400)) for i in range(300)]
    assert homes[:10] == ["r0"] * 10
    assert "r1" in homes


def test_a_price_is_that_of_a_request_alone_however_many_ran_beside():
    alone, beside = Prices(), Prices()
    for _ in range(60):
        alone.learn(Timings(predicted_n=101, predicted_ms=5000), 0, 0)
        slower = Timings(predicted_n=101, predicted_ms=5000 * (1 + 3 * TOKEN_SLOWDOWN))
        beside.learn(slower, num_before=2, num_after=4)
    assert abs(alone.token - beside.token) < 1e-6


def asked(**fields):
    return read(orjson.dumps(fields))


USER = {"role": "user", "content": "Hello"}
REPLY = {"role": "assistant", "content": "Hi there"}
MORE = {"role": "user", "content": "And now?"}


def stream(*events: object) -> bytes:
    return b"".join(b"data: " + orjson.dumps(one) + b"\n\n" for one in events) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("is_stream", [True, False])
def test_timings_are_read_of_streams_and_whole_answers(is_stream):
    said = {"delta": {"content": 'a text with "timings": {"cache_n": 9} in it'}}
    last = {
        "choices": [said],
        "timings": {"cache_n": 3, "prompt_n": 4, "prompt_ms": 5.0},
        "seed": 1,
    }
    early = {"choices": [], "timings": {"cache_n": 3, "prompt_n": 2}}
    timings = timings_of(stream(early, last) if is_stream else orjson.dumps(last))
    assert timings is not None
    assert (timings.cache_n, timings.prompt_n) == (3, 4)


def test_the_next_turn_begins_with_this_one():
    first, following = asked(messages=[USER]), asked(messages=[USER, REPLY, MORE])
    assert following.text.startswith(first.text)
    assert following.conversation == first.conversation


def test_a_conversation_keeps_its_name_if_its_client_writes_the_first_turn_anew():
    def parts(kind: str = "text", **marks: object) -> dict[str, object]:
        return USER | {"content": [{"type": kind, "text": "Hello", **marks}]}

    first = asked(messages=[parts(cache_control={"type": "ephemeral"})])
    for turn in (USER, parts()):
        assert asked(messages=[turn, REPLY, MORE]).conversation == first.conversation
    first = asked(input="Hello")
    for turn in (USER, parts("input_text"), {"type": "message", **USER}):
        assert asked(input=[turn, REPLY, MORE]).conversation == first.conversation
    calls = [{"type": "reasoning", "summary": []}, {"type": "function_call", "name": "look"}]
    assert asked(input=[USER, *calls, MORE]).conversation == first.conversation
    assert asked(input="Hello!").conversation != first.conversation


def test_token_ids_that_begin_alike_are_texts_that_begin_alike():
    short, long = asked(prompt=[5, 600, 70000]), asked(prompt=[5, 600, 70000, 8])
    assert long.text.startswith(short.text)
    assert not asked(prompt=[5, 601, 70000, 8]).text.startswith(short.text)


@pytest.mark.parametrize("encode", [base64.b64encode, base64.encodebytes])
def test_an_image_counts_as_a_few_hundred_tokens_of_text_whatever_its_size(encode):
    """Or it would count as hundreds of thousands, and text beside it as almost nothing."""

    def shown(file: bytes) -> list[dict[str, object]]:
        data = encode(file).decode()
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}
        return [{"role": "user", "content": [image, {"type": "text", "text": "What is it?"}]}]

    first, other = (asked(messages=shown(letter * 500_000)) for letter in (b"a", b"B"))
    following = asked(messages=[*shown(b"a" * 500_000), REPLY, MORE])
    assert 1024 < len(first.text) < 2048
    assert following.text.startswith(first.text)
    assert other.blocks[2:] != first.blocks[2:]
    assert other.conversation != first.conversation


def test_tools_and_model_stand_before_all():
    plain = asked(messages=[USER])
    for fields in ({"model": "other"}, {"tools": [{"type": "function"}]}, {"system": "Be kind."}):
        assert asked(messages=[USER], **fields).text[:16] != plain.text[:16]
    assert read(orjson.dumps({"messages": [USER]}), "tenant").text[:16] != plain.text[:16]


def test_a_body_that_continues_a_stored_response_says_so():
    assert asked(input="And?", previous_response_id="resp-7").needs == "resp-7"


def test_a_client_may_name_its_conversation():
    one, two = (asked(messages=[m], prompt_cache_key="key") for m in (USER, MORE))
    assert one.conversation == two.conversation != asked(messages=[USER]).conversation


@pytest.mark.parametrize(
    "body",
    [b"", b"--boundary", b"[1]", b"null", b'{"messages": 3}', b'{"prompt": "x", "input": []}',
     b'{"messages": [null, 3, {"content": {}}]}',
     b'{"prompt": [[1, 2], "x", -5]}', b'{"prompt": [-5, 99999999999999999999]}',
     b'{"max_tokens": "many", "prompt": "x"}', b'{"input": {"a": [{}]}}'],
)  # fmt: skip
def test_a_body_that_is_not_understood_is_no_error(body):
    read(body)


@pytest.mark.parametrize(
    "data",
    [b"data: 3\n", b"data: {\n", b'data: {"choices": []}\n', b'data: {"timings": {}}\n',
     b'data: {"timings": {"cache_n": "x"}}\n', b'data: ["timings"]\n', b'data: "timings": {3}\n'],
)  # fmt: skip
def test_an_answer_that_is_not_understood_is_no_error(data):
    assert timings_of(data) is None
