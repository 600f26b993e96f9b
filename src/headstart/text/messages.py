"""Converts chat messages to the form that templates expect: OpenAI's, fields in a fixed order.

The conversions are llama-server's, so that prompts are identical: content parts stay parts only if
the template reads parts, a call's arguments become an object if it reads one, the developer role
becomes system, and a system message that the template ignores is merged into the next message.

Source: llama.cpp's common/chat.cpp.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from headstart.text.capabilities import Capabilities
from headstart.text.toolcalls.json_text import dump
from headstart.types.errors import RequestError

Message = Mapping[str, Any]
"""role, content (text, or a list of {"type": "text", "text": ...}, or of media_marker for the place
of an image), and for assistants reasoning_content and tool_calls, for tools tool_call_id and name.
"""
_FIELDS = ("role", "content", "reasoning_content", "name", "tool_call_id", "tool_calls")


def content_text(content: str | Sequence[Mapping[str, Any]] | None, separator: str = "\n") -> str:
    """Join a message's text parts, one a line, and markers of images between them."""
    if content is None or isinstance(content, str):
        return content or ""
    text, is_behind_image = "", False
    for part in content:
        is_image = part["type"] != "text"  # it has no line of its own
        begins_line = text and not (is_image or is_behind_image)
        text += (separator if begins_line else "") + part["text"]
        is_behind_image = is_image
    return text


def adapt_messages(
    messages: Sequence[Message], capabilities: Capabilities, *, knows_developers: bool
) -> list[dict[str, Any]]:
    """Copies of the messages for a template with these capabilities."""
    adapted = [_canonical(message) for message in messages]
    for message in adapted:
        _adapt_content(message, capabilities)
        if message.get("role") == "developer" and not knows_developers:
            message["role"] = "system"
        if capabilities.supports_object_arguments:
            _parse_arguments(message)
    if not capabilities.supports_system_role:
        _merge_system(adapted)
    return adapted


def adapt_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of OpenAI's tools, reduced to the three fields that templates read."""
    functions = [tool["function"] for tool in tools]
    return [
        {
            "type": "function",
            "function": {
                "name": function["name"],
                "description": function.get("description") or "",
                "parameters": copy.deepcopy(function.get("parameters") or {}),
            },
        }
        for function in functions
    ]


def _canonical(message: Message) -> dict[str, Any]:
    """Known fields in llama-server's order, then others; arguments of calls as JSON text."""
    ordered = {name: copy.deepcopy(message.get(name)) for name in _FIELDS}
    ordered |= {name: copy.deepcopy(message[name]) for name in message if name not in _FIELDS}
    ordered["tool_calls"] = [_canonical_call(call) for call in ordered["tool_calls"] or ()]
    for name in _FIELDS[2:]:
        if not ordered[name]:
            del ordered[name]
    ordered["content"] = ordered["content"] or ""
    return ordered


def _canonical_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = dump(arguments)
    ordered = {
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }
    return ordered | ({"id": call["id"]} if call.get("id") else {})


def _adapt_content(message: dict[str, Any], capabilities: Capabilities) -> None:
    takes_text = capabilities.supports_string_content
    takes_parts = capabilities.supports_typed_content
    content = message["content"]
    if isinstance(content, list) and (
        not takes_parts or any(part["type"] != "text" for part in content)
    ):
        content = content_text(content)
    if takes_parts and not takes_text and isinstance(content, str):
        content = [{"type": "text", "text": content}]
    message["content"] = content


def _parse_arguments(message: dict[str, Any]) -> None:
    for call in message.get("tool_calls", ()):
        function = call["function"]
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except ValueError as error:
            raise RequestError(
                f"the arguments of a call of {function['name']} are not valid JSON: {error}"
            ) from error


def _merge_system(messages: list[dict[str, Any]]) -> None:
    if not messages or messages[0]["role"] != "system":
        return
    system = messages.pop(0)
    if messages:
        text = content_text(system["content"]) + "\n" + content_text(messages[0]["content"])
        messages[0]["content"] = text
