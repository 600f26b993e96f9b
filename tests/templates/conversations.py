"""Conversations that are rendered by llama-server (recorded) and by us, as bodies of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FIXTURE = Path(__file__).parent / "llama_server_prompts.json.xz"


def _turn(role: str, content: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Name of the city"},
                    "days": {"type": "integer"},
                    "unit": {"type": "string", "enum": ["C", "F"]},
                },
                "required": ["city"],
            },
            "strict": True,
        },
    },
    {
        "type": "function",
        "function": {
            "name": "send",
            "description": "Send an e-mail",
            "parameters": {
                "type": "object",
                "properties": {
                    "to": {"type": "array", "items": {"type": "string"}},
                    "text": {"type": "string"},
                },
                "required": ["to", "text"],
            },
        },
    },
]


def by_name(tools: Sequence[Mapping[str, Any]] = TOOLS) -> dict[str, Mapping[str, Any]]:
    """The functions of these tools, as a parser takes them."""
    return {tool["function"]["name"]: tool["function"] for tool in tools}


HELLO = _turn("user", "Hello, wörld <b>")
ANSWER = _turn("assistant", "Hi there!")
SYSTEM = _turn("system", "You are kind.")
ASKED = _turn("user", "How is the weather in Paris?")
PARIS = _call("call00001", "get_weather", '{"city": "Paris", "days": 2}')
ROME = _call("call00002", "send", '{"to": ["a@b.c"], "text": "Line 1\\nLine \\"2\\""}')
THOUGHTS = "I should be brief."
SCHEMA_FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "weather",
        "schema": {"type": "object", "properties": {"rain": {"type": "boolean"}}},
    },
}
PARTS = [{"type": "text", "text": "First part."}, {"type": "text", "text": "Second part."}]

CONVERSATIONS: dict[str, dict[str, Any]] = {
    "user": {"messages": [HELLO]},
    "system": {"messages": [SYSTEM, HELLO]},
    "multi_turn": {"messages": [SYSTEM, HELLO, ANSWER, ASKED]},
    "no_generation_prompt": {"messages": [HELLO, ANSWER, ASKED], "add_generation_prompt": False},
    "developer": {"messages": [_turn("developer", "You are kind."), HELLO]},
    "parts": {"messages": [_turn("system", PARTS), _turn("user", PARTS)]},
    "prefill": {"messages": [HELLO, _turn("assistant", "The answer is")]},
    "prefill_thoughts": {"messages": [HELLO, _turn("assistant", "", reasoning_content=THOUGHTS)]},
    "prefill_both": {
        "messages": [HELLO, _turn("assistant", "The answer is", reasoning_content=THOUGHTS)],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "prefill_without_thinking": {
        "messages": [HELLO, _turn("assistant", "The answer is")],
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "thoughts": {"messages": [HELLO, ANSWER | {"reasoning_content": THOUGHTS}, ASKED]},
    "preserved_thoughts": {
        "messages": [HELLO, ANSWER | {"reasoning_content": THOUGHTS}, ASKED],
        "chat_template_kwargs": {"preserve_reasoning": True},
    },
    "without_thinking": {
        "messages": [SYSTEM, HELLO],
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "low_effort": {"messages": [SYSTEM, HELLO], "reasoning_effort": "low"},
    "no_effort": {"messages": [HELLO], "reasoning_effort": "none"},
    "tools": {"messages": [SYSTEM, ASKED], "tools": TOOLS},
    "tools_without_system": {"messages": [ASKED], "tools": TOOLS},
    "called": {
        "messages": [
            ASKED,
            _turn("assistant", None, tool_calls=[PARIS]),
            _turn("tool", "It rains.", tool_call_id="call00001", name="get_weather"),
        ],
        "tools": TOOLS,
    },
    "called_twice": {
        "messages": [
            SYSTEM,
            ASKED,
            _turn("assistant", "One moment.", tool_calls=[PARIS, ROME], reasoning_content=THOUGHTS),
            _turn("tool", '{"rain": true}', tool_call_id="call00001"),
            _turn("tool", "sent", tool_call_id="call00002"),
            _turn("assistant", "It rains."),
            _turn("user", "Thanks"),
        ],
        "tools": TOOLS,
    },
    "called_without_tools": {
        "messages": [
            ASKED,
            {"role": "assistant", "tool_calls": [PARIS]},
            _turn("tool", "It rains.", tool_call_id="call00001"),
        ]
    },
    "no_budget": {"messages": [SYSTEM, HELLO], "reasoning_budget_tokens": 0},
    "no_budget_without_thinking": {
        "messages": [HELLO],
        "reasoning_budget_tokens": 0,
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "no_budget_with_tools": {
        "messages": [HELLO, ANSWER, ASKED],
        "tools": TOOLS,
        "reasoning_budget_tokens": 0,
    },
    "schema": {"messages": [SYSTEM, HELLO], "response_format": SCHEMA_FORMAT},
    "schema_with_tools": {"messages": [ASKED], "tools": TOOLS, "response_format": SCHEMA_FORMAT},
}
BUILT_IN_CONVERSATIONS = {
    name: CONVERSATIONS[name] for name in ("user", "system", "multi_turn", "no_generation_prompt")
}
