"""Anthropic's messages API, with its own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from tests.server.fake_worker import FakeWorker, say
from tests.server.serving import served_model, serving
from tests.server.test_tool_calls import TEMPLATE
from tests.unit.text.toolcalls.test_constraint import HERMES, accepts, rules
from tests.unit.text.toolcalls.test_llama_server_parses import reader_of

from headstart.server.anthropic import MessagesBody, chat_body
from headstart.types.errors import HeadstartError

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOLS = [{"name": "look", "description": "Look.", "input_schema": {"type": "object"}}]


@contextmanager
def claude(client: httpx2.Client) -> Iterator[Any]:
    import anthropic  # takes two seconds in each process of tests, and only one needs it

    url = str(client.base_url)
    with anthropic.Anthropic(base_url=url, api_key="-", max_retries=0) as sdk:
        yield sdk


@pytest.fixture
def sdk(client: httpx2.Client) -> Iterator[Any]:
    with claude(client) as sdk:
        yield sdk


def test_a_message_is_answered(sdk: Any) -> None:
    answer = sdk.messages.create(model="any", max_tokens=9, messages=MESSAGES)
    assert [(block.type, block.text) for block in answer.content] == [("text", "Höi!")]
    assert (answer.role, answer.stop_reason, answer.stop_sequence) == (
        "assistant",
        "end_turn",
        None,
    )
    usage = answer.usage
    assert (usage.cache_read_input_tokens, usage.input_tokens, usage.output_tokens) == (2, 3, 4)


def test_a_stream_opens_and_closes_its_blocks(sdk: Any) -> None:
    with sdk.messages.stream(model="any", max_tokens=9, messages=MESSAGES) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[1] == "content_block_start"
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert final.content[0].text == "Höi!"
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 4)


def test_a_stop_sequence_is_named(sdk: Any, worker: FakeWorker) -> None:
    worker.script = lambda request: say(request, b"ab", reason="word", stopping_word="!")
    answer = sdk.messages.create(model="any", max_tokens=9, messages=MESSAGES, stop_sequences=["!"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "!")
    assert b"!" in worker.requests[0].stop


def test_a_required_call_becomes_a_tool_use_block(sdk: Any, worker: FakeWorker) -> None:
    said = json.dumps({"name": "look", "arguments": {"at": "it"}}).encode()
    worker.script = lambda request: say(request, said)
    wish = {"model": "any", "max_tokens": 9, "messages": MESSAGES, "tools": TOOLS}
    answer = sdk.messages.create(**wish, tool_choice={"type": "any"})
    with sdk.messages.stream(**wish, tool_choice={"type": "any"}) as stream:
        streamed = stream.get_final_message()
    for one in (answer, streamed):
        (block,) = [block for block in one.content if block.type == "tool_use"]
        assert (block.name, block.input) == ("look", {"at": "it"})
        assert block.id
        assert one.stop_reason == "tool_use"


def test_tokens_are_counted(client: httpx2.Client, sdk: Any) -> None:
    count = sdk.messages.count_tokens(model="any", messages=MESSAGES, system="Be.")
    plain = sdk.messages.count_tokens(model="any", messages=MESSAGES)
    chat = client.post("/v1/chat/completions/input_tokens", json={"messages": MESSAGES}).json()
    assert count.input_tokens > plain.input_tokens == chat["input_tokens"] > 0


def test_blocks_become_messages_in_their_order() -> None:
    body = MessagesBody(
        system=[{"type": "text", "text": "S"}],
        messages=[
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "text", "text": "a"},
                    {"type": "tool_use", "id": "1", "name": "look", "input": {"x": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": "seen"},
                    {"type": "text", "text": "go on"},
                ],
            },
        ],
        thinking={"type": "disabled"},
    )
    chat = chat_body(body)
    assert [message["role"] for message in chat.messages] == ["system", "assistant", "tool", "user"]
    said = chat.messages[1]
    assert said["reasoning_content"] == "hm"
    assert said["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"x":1}'}
    assert chat.messages[2] == {"role": "tool", "tool_call_id": "1", "content": "seen"}
    assert chat.chat_template_kwargs == {"enable_thinking": False}
    assert chat.max_tokens == 4096


def test_a_tool_of_the_api_is_offered_by_its_name_and_takes_any_arguments() -> None:
    web = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    (tool,) = chat_body(MessagesBody(messages=MESSAGES, tools=[web])).tools or []
    assert tool["function"]["name"] == "web_search"
    call = '<tool_call>\n{"name": "web_search", "arguments": {"query": "x"}}\n</tool_call>'
    assert accepts(rules([tool]).required(HERMES), call)
    template, _ = reader_of("ByteDance-Seed-OSS")  # which reads the properties
    assert "web_search" in template.render(MESSAGES, tools=[tool], add_generation_prompt=True)


def test_a_stamp_of_claude_code_changes_no_prompt() -> None:
    def prompt(stamp: str) -> Any:
        head = f"x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; {stamp};"
        system = [{"type": "text", "text": head}, {"type": "text", "text": "You are Claude Code."}]
        return chat_body(MessagesBody(system=system, messages=MESSAGES)).messages[0]["content"]

    assert prompt("cch=a5145") == prompt("cch=0ffee") != prompt("other=a5145")
    assert prompt("cch=a5145").endswith("cch=fffff;You are Claude Code.")


def test_the_wanted_form_constrains_the_answer(sdk: Any, worker: FakeWorker) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    config = {"format": {"type": "json_schema", "schema": schema}, "effort": "max"}
    sdk.messages.create(model="any", max_tokens=9, messages=MESSAGES, output_config=config)
    constraint = worker.requests[0].constraint
    assert constraint
    assert json.loads(constraint.text) == schema
    # Claude Code sends an effort by itself, and templates refuse what they do not know
    body = MessagesBody.model_validate({"messages": MESSAGES, "output_config": config})
    assert chat_body(body).reasoning_effort is None


@pytest.mark.parametrize("name", ["repeat_penalty", "speculative.p_min", "grammar", "stream"])
def test_other_fields_of_chat_are_taken(name: str) -> None:
    value: Any = {"grammar": 'root ::= "a"', "stream": True}.get(name, 0.5)
    chat = chat_body(MessagesBody.model_validate({"messages": MESSAGES, name: value}))
    holder: Any = chat.speculative if name.startswith("speculative.") else chat
    assert getattr(holder, name.removeprefix("speculative.")) == value


def test_a_stop_string_of_the_template_is_the_end_of_the_turn(sdk: Any, worker: FakeWorker) -> None:
    worker.script = lambda request: say(request, b"ab", reason="word", stopping_word="<|e|>")
    answer = sdk.messages.create(model="any", max_tokens=9, messages=MESSAGES)
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)


CALL = b'<tool_call>{"name": "look", "arguments": {"at": "it"}}</tool_call>'


@pytest.mark.parametrize(
    ("said", "kinds"),
    [
        ([b"Hm.</think>One.", CALL, b"Two."], ["thinking", "text", "tool_use", "text"]),
        ([b"Hm.</think>", CALL, CALL], ["thinking", "tool_use", "tool_use"]),
        ([b"Hm."], ["thinking"]),
        ([], ["text"]),
    ],
)
def test_a_stream_has_the_blocks_of_the_whole_answer(said: list[bytes], kinds: list[str]) -> None:
    worker = FakeWorker(lambda request: say(request, *said))
    wish = {"model": "any", "max_tokens": 9, "messages": MESSAGES, "tools": TOOLS}
    with serving(worker, model=served_model(TEMPLATE)) as client, claude(client) as sdk:
        whole = sdk.messages.create(**wish)
        with sdk.messages.stream(**wish) as stream:
            streamed = stream.get_final_message()
    blocks = [
        [block.model_dump(exclude={"id"}) for block in one.content] for one in (whole, streamed)
    ]
    assert blocks[0] == blocks[1]
    assert [block["type"] for block in blocks[0]] == kinds
    assert whole.stop_reason == streamed.stop_reason


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("messages", [{"role": "user", "content": [{"type": "image"}]}], "source of type base64"),
        ("messages", [{"role": "user", "content": [{"type": "x"}]}], "block of type 'x'"),
        ("tools", [{"type": "mcp_toolset"}], "tools.0.name is null but must be a text"),
        ("tool_choice", {"type": "x"}, "tool_choice.type is 'x'"),
        ("tool_choice", {"type": ["x"]}, r"tool_choice.type is \['x'\]"),
        ("chat_template_kwargs", "x", "chat_template_kwargs is 'x' but must be an object"),
        ("system", 5, "system must be a text"),
    ],
)
def test_what_cannot_be_honoured_is_named(field: str, value: Any, says: str) -> None:
    fields = {"messages": MESSAGES, "thinking": {"type": "enabled"}, field: value}
    with pytest.raises(HeadstartError, match=says):
        chat_body(MessagesBody.model_validate(fields))


def test_errors_have_anthropics_form(client):
    answer = client.post("/v1/messages", json={"messages": MESSAGES, "temperature": "hot"})
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    assert "temperature is 'hot'" in answer.json()["error"]["message"]


def test_a_list_without_messages_is_a_silent_user(client):
    answer = client.post("/v1/messages", json={"max_tokens": 4, "messages": []})
    assert (answer.status_code, answer.json()["type"]) == (200, "message")
