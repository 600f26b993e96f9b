"""Tools and thoughts over HTTP: what a model writes, as OpenAI's clients read it."""

from __future__ import annotations

import time

import pytest
from tests.planted import noted
from tests.server.fake_worker import FakeWorker, say
from tests.server.serving import error_of, openai_of, served_model, serving
from tests.templates.conversations import TOOLS

from headstart.server import translate
from headstart.server.body import make_body
from headstart.server.conversation import tagged_thoughts
from headstart.server.schemas import NativeBody
from headstart.types.constraint import NO_LIMIT, ConstraintKind, ThoughtMarks
from headstart.types.request import ReplyEvent

CHAT = "/v1/chat/completions"
TEMPLATE = """\
{%- for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}
{%- for m in messages %}<{{ m.role }}>
{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{- m.content }}
{%- for call in m.tool_calls or [] %}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>{% endif %}{% endif %}"""  # noqa: E501
ASKED = {"messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS}
ANSWER = (
    b"I wonder.</think>One moment.",
    b'<tool_call>{"name": "get_weather", "argu',
    b'ments": {"city": "P',
    b'aris"}}</tool_call><tool_call>{"name": "send", "arguments": {}}</tool_call>',
)
OPEN = ThoughtMarks(b"<think>", b"</think>", is_open=True)


@pytest.fixture(scope="module")
def worker():
    return FakeWorker(lambda request: say(request, *ANSWER))


@pytest.fixture(scope="module")
def client(worker):
    with serving(worker, model=served_model(TEMPLATE)) as client:
        yield client


@pytest.fixture(scope="module")
def sdk(client):
    with openai_of(client) as sdk:
        yield sdk


def ask(client, **fields):
    return client.post(CHAT, json=ASKED | fields).json()["choices"][0]


def test_an_answer_with_calls(client):
    choice = ask(client)
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("One moment.", "I wonder.")
    first, second = message["tool_calls"]
    assert first["id"] != second["id"]
    assert first["type"] == "function"
    assert first["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert second["function"] == {"name": "send", "arguments": "{}"}


def test_a_stream_says_the_name_first_and_the_arguments_in_pieces(sdk):
    stream = sdk.chat.completions.create(model="m", stream=True, **ASKED)
    deltas = [chunk.choices[0] for chunk in stream if chunk.choices]
    calls = [call for one in deltas for call in one.delta.tool_calls or ()]
    assert (calls[0].index, calls[0].function.name) == (0, "get_weather")
    assert calls[0].id.startswith("call_")
    arguments = [call.function.arguments for call in calls if call.index == 0]
    assert "".join(arguments) == '{"city": "Paris"}'
    assert len([text for text in arguments if text]) == 2
    assert all(call.function.name is None for call in calls if call.index == 0 and not call.id)
    assert [call.function.name for call in calls if call.index == 1 and call.id] == ["send"]
    thoughts = [getattr(one.delta, "reasoning_content", None) or "" for one in deltas]
    assert "".join(thoughts) == "I wonder."
    assert "".join(one.delta.content or "" for one in deltas) == "One moment."
    assert not any(one.delta.content and hasattr(one.delta, "reasoning_content") for one in deltas)
    assert [one.finish_reason for one in deltas if one.finish_reason] == ["tool_calls"]


def test_calls_may_be_left_in_the_content(client):
    for fields in ({"tool_choice": "none"}, {"parse_tool_calls": False}):
        choice = ask(client, **fields)
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"].startswith("One moment.<tool_call>")
        assert "tool_calls" not in choice["message"]


def test_thoughts_may_be_left_in_the_content(client):
    message = ask(client, reasoning_format="none")["message"]
    assert message["content"] == "I wonder.</think>One moment."
    assert "reasoning_content" not in message
    assert ask(client, reasoning_format="")["message"]["reasoning_content"] == "I wonder."
    bad = client.post(CHAT, json=ASKED | {"reasoning_format": "x"})
    assert "reasoning_format is 'x' but must be 'none', 'auto'" in error_of(bad, 400)


def test_a_budget_of_no_thoughts_leaves_the_prompt_alone_and_ends_them_at_once(client, worker):
    for kwargs, is_thinking in (({}, True), ({"enable_thinking": False}, False)):
        ask(client, reasoning_budget_tokens=0, chat_template_kwargs=kwargs)
        limited = worker.requests[-1]
        ask(client, chat_template_kwargs=kwargs)
        assert limited.prompt == worker.requests[-1].prompt
        assert (limited.thoughts.max_tokens, limited.thoughts.is_thinking) == (0, is_thinking)


def test_a_budget_of_thoughts_becomes_their_limit(client, worker):
    ask(client, reasoning_budget_tokens=5, reasoning_budget_message="Enough.")
    limit = worker.requests[-1].thoughts
    assert (limit.max_tokens, limit.start, limit.ends) == (5, b"<think>", (b"</think>",))
    assert bytes(limit.closing) == b"Enough.</think>"
    assert limit.is_thinking
    ask(client)
    assert worker.requests[-1].thoughts is None
    bad = client.post(CHAT, json=ASKED | {"reasoning_budget_tokens": -2})
    assert "reasoning_budget_tokens" in error_of(bad, 400)


def test_thoughts_may_be_ended_while_they_are_written(client, worker):
    ask(client, reasoning_control=True)
    assert worker.requests[-1].thoughts.max_tokens == NO_LIMIT
    script = worker.script
    worker.script = lambda one: [ReplyEvent(one.request_id, "no" * (one.answer == "x"))]
    for name, said in (("a", {"success": True}), ("x", {"success": False, "message": "no"})):
        body = {"id": name, "action": "reasoning_end"}
        assert client.post(f"{CHAT}/control", json=body).json() == said
    worker.script = script
    bad = client.post(f"{CHAT}/control", json={"id": "a", "action": "x"})
    assert "action is 'x' but must be 'reasoning_end'" in error_of(bad, 400)


def constraint(client, worker, **fields):
    client.post(CHAT, json=ASKED | fields).raise_for_status()
    return worker.requests[-1].constraint


def test_calls_are_constrained_from_their_marker_on(client, worker):
    found = constraint(client, worker)
    assert (found.kind, found.triggers) == (ConstraintKind.LARK, (b"<tool_call>",))
    assert found.thoughts == OPEN
    assert '"send' in found.text
    assert constraint(client, worker, reasoning_format="none").thoughts is None
    assert constraint(client, worker, tool_choice="none") is None


def test_required_calls_follow_the_thoughts(client, worker):
    found = constraint(client, worker, tool_choice="required")
    assert (found.triggers, found.thoughts) == ((), OPEN)
    named = {"type": "function", "function": {"name": "send"}}
    found = constraint(client, worker, tool_choice=named)
    assert "get_weather" not in found.text
    assert ")*" in found.text
    single = constraint(client, worker, tool_choice=named, parallel_tool_calls=False)
    assert ")*" not in single.text
    fields = {"chat_template_kwargs": {"enable_thinking": False}, "tool_choice": "required"}
    found = constraint(client, worker, **fields)
    assert (found.triggers, found.thoughts) == ((), None)


def test_a_schema_holds_for_what_follows_the_thoughts(client, worker):
    fields = {"json_schema": {"type": "object"}, "tools": []}
    found = constraint(client, worker, **fields)
    assert (found.triggers, found.thoughts) == ((), OPEN)


def test_a_lazy_grammar_does_not_begin_inside_thoughts(client, worker):
    lazy = {
        "grammar": 'root ::= "x" [0-9]',
        "grammar_lazy": True,
        "grammar_triggers": [{"type": 1, "value": "x"}],
        "tools": [],
    }
    found = constraint(client, worker, **lazy)
    assert (found.triggers, found.thoughts) == ((b"x",), OPEN)


def test_an_answer_that_may_begin_with_thoughts_is_constrained_behind_them():
    source = TEMPLATE.replace("<think>{% endif %}{% endif %}", "{% endif %}{% endif %}")
    worker = FakeWorker(lambda request: say(request, b"{}"))
    marks = ThoughtMarks(b"<think>", b"</think>", is_open=False, opening=tuple(b"<think>"))
    with serving(worker, model=served_model(source)) as client:
        for fields in (
            {"json_schema": {"type": "object"}, "tools": []},
            {"tool_choice": "required"},
        ):
            found = constraint(client, worker, **fields)
            assert found.thoughts == marks
        without = {"json_schema": {"type": "object"}, "tools": []}
        assert constraint(client, worker, reasoning_format="none", **without).thoughts is None
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        assert constraint(client, worker, **off, **without).thoughts is None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tool_choice": "maybe"}, "tool_choice is 'maybe' but must be auto, none, required"),
        ({"tool_choice": {"function": {"name": "x"}}}, "names 'x' but the tools are get_weather"),
        ({"tools": [], "tool_choice": {"function": {"name": "x"}}}, "there are no tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0 must be"),
        ({"tools": [{"function": {"name": ""}}]}, "tools.0.function.name is required"),
    ],
)
def test_tools_that_cannot_be_are_refused(client, fields, says):
    assert says in error_of(client.post(CHAT, json=ASKED | fields), 400)


def test_a_schema_applies_even_where_calls_are_required_as_in_llama_server(client, worker):
    schema = {"json_schema": {"const": 5}}
    assert constraint(client, worker, tool_choice="required", **schema) == constraint(
        client, worker, **schema
    )


def test_calls_cannot_be_required_without_tools_as_in_llama_server(client, worker):
    for fields in ({"json_schema": {"type": "object"}}, {}):
        body = ASKED | {"tools": [], "tool_choice": "required"} | fields
        assert client.post(CHAT, json=body).status_code == 200
        assert bool(worker.requests[-1].constraint) == bool(fields)


def test_props_say_which_format_was_found(client):
    found = client.get("/props").json()
    assert found["chat_format"] == {
        "tool_calls": "json",
        "tool_call_triggers": ["<tool_call>"],
        "why_no_tool_calls": None,
        "thinking_start": "<think>",
        "thinking_end": "</think>",
    }
    assert found["chat_template_caps"]["supports_tools"] is True


def test_a_template_without_calls_gets_plain_json_where_they_are_required():
    script = b'{"name": "send", "arguments": {"to": []}}'
    worker = FakeWorker(lambda request: say(request, script))
    with serving(worker) as client:
        body = ASKED | {"tool_choice": "required"}
        message = client.post(CHAT, json=body).json()["choices"][0]["message"]
        assert message["tool_calls"][0]["function"]["arguments"] == '{"to": []}'
        wanted = worker.requests[-1].constraint
        assert wanted is not None and wanted.triggers == ()  # noqa: PT018
        assert "tool_calls" not in client.post(CHAT, json=ASKED).json()["choices"][0]["message"]
        assert client.get("/props").json()["chat_format"]["why_no_tool_calls"]


def test_histories_with_calls_and_results_are_rendered(client):
    call = {"id": "1", "type": "function", "function": {"name": "send", "arguments": '{"a": 1}'}}
    messages = [
        *ASKED["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sent"},
    ]
    prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert '<tool_call>{"name": "send", "arguments": {"a": 1}}</tool_call><tool>sent' in prompt


def test_tags_say_which_thoughts_a_budget_limits(client, worker):
    tags = {"reasoning_budget_start_tag": "<think>", "reasoning_budget_end_tags": ["</t>", "", "."]}
    budget = {"reasoning_budget_tokens": 5, "reasoning_budget_message": "Enough."}
    limits = []
    for prompt in ("a", "a<think>b", "a<think>b</t>c"):
        body = {"prompt": prompt, **tags, **budget}
        assert client.post("/completion", json=body).status_code == 200
        limits.append(worker.requests[-1].thoughts)
    assert [limit.is_thinking for limit in limits] == [False, True, False]
    first = limits[0]
    assert (first.max_tokens, first.start, first.ends) == (5, b"<think>", (b"</t>", b"."))
    assert bytes(first.closing) == b"Enough.</t>"
    single = {"reasoning_budget_start_tag": "<", "reasoning_budget_end_tag": ">"}
    for fields, expected in (
        (single | budget, b">"),
        (single, None),
        (budget, None),
        (single | {"reasoning_budget_tokens": -1}, None),
    ):
        assert client.post("/completion", json={"prompt": "a"} | fields).status_code == 200
        limit = worker.requests[-1].thoughts
        assert (limit and limit.ends[0]) == expected
    for missing in ("end_tags", "start_tag"):
        fields = {name: tag for name, tag in tags.items() if not name.endswith(missing)}
        bad = client.post("/completion", json={"prompt": "a"} | fields | budget)
        assert f"says nothing without reasoning_budget_{missing}" in bad.text
        assert bad.status_code == 400


def test_tags_are_found_once_for_all_choices_and_in_linear_time(client, monkeypatch):
    tags = {"reasoning_budget_start_tag": "<", "reasoning_budget_end_tags": ["=x" + "=" * 254] * 16}
    body = {"prompt": ["a", "b"], "n": 4, "reasoning_budget_tokens": 1, **tags}
    found = noted(monkeypatch, translate, "tagged_thoughts")
    client.post("/completion", json=body).raise_for_status()
    assert len(found) == 2
    started = time.process_time()
    tagged_thoughts(make_body(NativeBody, body), "=" * 4_000_000, served_model())
    assert time.process_time() - started < 1
