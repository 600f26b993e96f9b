"""What the router reads of bodies and answers."""

from __future__ import annotations

import orjson
import pytest

from headstart.gateway.balancer.conversation import read, timings_of


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
