"""What the router reads of bodies and answers."""

from __future__ import annotations

import orjson
import pytest

from headstart.gateway.balancer.conversation import AnswerText, read


def asked(**fields):
    return read(orjson.dumps(fields))


USER = {"role": "user", "content": "Hello"}
REPLY = {"role": "assistant", "content": "Hi there"}
MORE = {"role": "user", "content": "And now?"}


def stream(*events: object) -> bytes:
    return b"".join(b"data: " + orjson.dumps(one) + b"\n\n" for one in events) + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "answer",
    [
        stream({"choices": [{"index": 0, "delta": {"content": "Hi "}}]},
               {"choices": [{"index": 0, "delta": {"content": "there"}}]}),
        stream({"type": "content_block_delta", "delta": {"text": "Hi there"}}),
        stream({"type": "response.output_text.delta", "delta": "Hi there"}),
        orjson.dumps({"message": REPLY, "done": True}) + b"\n",
        stream({"content": "Hi "}, {"content": "there", "stop": True}),
    ],
    ids=["openai", "anthropic", "responses", "ollama", "llama-server"],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_next_turn_begins_with_this_turn_and_its_streamed_answer(answer, size):
    first = asked(messages=[USER])
    text = AnswerText(is_stream=True)
    for at in range(0, len(answer), size):
        text.add(answer[at : at + size])
    text.end()
    following = asked(messages=[USER, REPLY, MORE])
    assert following.text.startswith(text.as_turn(first))
    assert bytes(text.text) == b"Hi there"
    assert following.conversation == first.conversation


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": [{"index": 0, "message": REPLY}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi there"}]},
    ],
)
def test_so_it_does_with_a_whole_answer(answer):
    text = AnswerText(is_stream=False)
    body = orjson.dumps(answer | {"timings": {"cache_n": 3, "prompt_n": 4, "prompt_ms": 5.0}})
    text.add(body[:10])
    text.add(body[10:])
    text.end()
    first = asked(messages=[USER])
    assert asked(messages=[USER, REPLY, MORE]).text.startswith(text.as_turn(first))
    assert text.timings is not None
    assert (text.timings.cache_n, text.timings.prompt_n) == (3, 4)


def test_the_text_of_a_completion_begins_with_the_prompt_and_goes_on_with_the_answer():
    text = AnswerText(is_stream=True)
    text.add(stream({"choices": [{"index": 0, "text": " upon a time"}]}))
    assert asked(prompt="Once upon a time there").text.startswith(
        text.as_turn(asked(prompt="Once"))
    )


def test_parts_of_a_message_are_read_as_the_same_text():
    parts = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    assert asked(messages=[parts]) == asked(messages=[USER])


def test_token_ids_that_begin_alike_are_texts_that_begin_alike():
    short, long = asked(prompt=[5, 600, 70000]), asked(prompt=[5, 600, 70000, 8])
    assert long.text.startswith(short.text)
    assert not asked(prompt=[5, 601, 70000, 8]).text.startswith(short.text)


def test_tools_and_model_stand_before_all():
    plain = asked(messages=[USER])
    for fields in ({"model": "other"}, {"tools": [{"type": "function"}]}, {"system": "Be kind."}):
        assert asked(messages=[USER], **fields).text[:16] != plain.text[:16]
    assert read(orjson.dumps({"messages": [USER]}), "tenant").text[:16] != plain.text[:16]


@pytest.mark.parametrize("is_stream", [True, False])
def test_the_name_of_a_stored_response_is_read(is_stream):
    response = {"id": "resp-7", "object": "response"}
    text = AnswerText(is_stream=is_stream)
    event = {"type": "response.created", "response": response}
    text.add(stream(event) if is_stream else orjson.dumps(response))
    text.end()
    assert text.stored_id == "resp-7"
    assert asked(input="And?", previous_response_id="resp-7").needs == "resp-7"


def test_a_client_may_name_its_conversation():
    one, two = (asked(messages=[m], prompt_cache_key="key") for m in (USER, MORE))
    assert one.conversation == two.conversation != asked(messages=[USER]).conversation


@pytest.mark.parametrize(
    "body",
    [b"", b"--boundary", b"[1]", b"null", b'{"messages": 3}',
     b'{"messages": [null, 3, {"content": {}}]}',
     b'{"prompt": [[1, 2], "x", -5]}', b'{"prompt": [-5, 99999999999999999999]}',
     b'{"max_tokens": "many", "prompt": "x"}', b'{"input": {"a": [{}]}}'],
)  # fmt: skip
def test_a_body_that_is_not_understood_is_no_error(body):
    read(body)


@pytest.mark.parametrize(
    "data",
    [b"data: 3\n", b"data: {\n", b'data: {"choices": []}\n', b'data: {"choices": [3]}\n',
     b'data: {"delta": 3}\n', b'data: {"content": [3]}\n',
     b'data: {"timings": {"cache_n": "x"}}\n'],
)  # fmt: skip
def test_an_answer_that_is_not_understood_is_no_error(data):
    for is_stream in (True, False):
        text = AnswerText(is_stream=is_stream)
        text.add(data)
        text.end()
        assert not text.text
        assert text.timings is None
