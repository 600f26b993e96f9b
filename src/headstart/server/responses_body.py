"""Bodies of OpenAI's responses API, and how they become chat bodies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from headstart.server.body import Body, Int, Many, make_body
from headstart.server.errors import not_supported, shorten, wrong_value
from headstart.server.schemas import ChatBody, shared_fields
from headstart.server.stored_responses import Item
from headstart.types.errors import RequestError


class ResponsesBody(Body):
    """POST /v1/responses; further fields of chat (top_k, speculative, ...) are accepted too."""

    asks_model: ClassVar[bool] = True
    model_config = ConfigDict(extra="allow")

    input: Any = Field(default=None, description="a text, or a list of items")
    instructions: str | None = Field(
        default=None, description="a system message, of this call only"
    )
    previous_response_id: str | None = Field(
        default=None, description="of a stored response whose conversation continues"
    )
    store: bool = Field(default=True, description="keep the response for GET and for the next one")
    max_output_tokens: Int | None = None
    stream: bool = False
    tools: Many[dict[str, Any]] = Field(
        default_factory=list, description="of type function; others are left out"
    )
    tool_choice: Any = None
    text: dict[str, Any] = Field(
        default_factory=dict, description="{format: {type: text, json_object or json_schema}}"
    )
    reasoning: dict[str, Any] = Field(default_factory=dict, description="{effort}")
    include: Many[str] = Field(
        default_factory=list, description="message.output_text.logprobs has an effect"
    )
    top_logprobs: Int | None = None
    metadata: dict[str, Any] = Field(default_factory=dict, description="comes back")


def chat_body(body: ResponsesBody, history: list[Item]) -> ChatBody:
    """The request as a chat that continues after the items of `history`.

    Raises:
        HeadstartError: an item or a field is not supported.
    """
    extra = body.model_extra or {}
    for name in ("background", "conversation", "prompt"):
        if extra.get(name):
            raise not_supported(f"{name} is not supported; leave it out")
    data = shared_fields(body)
    instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
    data["messages"] = [*instructions, *input_messages(history), *input_messages(body.input)]
    data["stream"] = body.stream
    if "store" in body.model_fields_set:  # the default concerns GET, not --record-texts
        data["store"] = body.store
    if body.max_output_tokens is not None:
        data["max_tokens"] = body.max_output_tokens
    if "message.output_text.logprobs" in body.include or body.top_logprobs:
        data |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    functions = [  # Codex sends OpenAI's own tools with every request
        (index, tool) for index, tool in enumerate(body.tools) if tool.get("type") == "function"
    ]
    if functions:
        data["tools"] = [_tool(index, tool) for index, tool in functions]
    if body.tool_choice is not None:
        data["tool_choice"] = body.tool_choice
    if answer_format := _response_format(body.text.get("format")):
        data["response_format"] = answer_format
    if effort := body.reasoning.get("effort"):
        if not isinstance(effort, str):
            raise wrong_value("reasoning.effort", effort, "a text")
        data["reasoning_effort"] = effort
    return make_body(ChatBody, data)


def input_messages(given: Any) -> list[Item]:
    """Chat messages of the field `input`.

    Raises:
        HeadstartError: an item is unknown or is not text.
    """
    if given is None:
        raise RequestError("input is required")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise wrong_value("input", given, "a text or a list of items")
    messages: list[Item] = []
    for index, item in enumerate(given):
        _add(messages, item, f"input.{index}")
    return messages


def _add(messages: list[Item], item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise wrong_value(where, item, "an object")
    kind, role = item.get("type") or "message", item.get("role")
    match kind:
        case "message" if role == "assistant":
            _assistant(messages)["content"] += "".join(_texts(item.get("content"), where))
        case "message" if role in ("user", "system", "developer"):
            parts = list(_parts(item.get("content"), where))
            is_text = len(parts) == 1 and parts[0]["type"] == "text"
            content = parts[0]["text"] if is_text else parts
            messages.append({"role": role, "content": content})
        case "function_call":
            call = {
                "name": _text(item, "name", where),
                "arguments": _text(item, "arguments", where),
            }
            named = {"id": _text(item, "call_id", where), "type": "function", "function": call}
            _assistant(messages).setdefault("tool_calls", []).append(named)
        case "function_call_output":
            parts = list(_parts(item.get("output"), where))
            is_text = all(part["type"] == "text" for part in parts)
            content = "".join(part["text"] for part in parts) if is_text else parts
            call_id = _text(item, "call_id", where)
            messages.append({"role": "tool", "content": content, "tool_call_id": call_id})
        case "reasoning":
            if thoughts := _thoughts(item, where):
                message = _assistant(messages)
                message["reasoning_content"] = message.get("reasoning_content", "") + thoughts
        case "message":
            raise wrong_value(f"{where}.role", role, "user, system, developer or assistant")
        case _:
            raise not_supported(f"{where} is of type {shorten(kind)}, which is not supported")


def _assistant(messages: list[Item]) -> Item:
    """The assistant message to which the items of an answer belong."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _texts(content: Any, where: str) -> Iterable[str]:
    for part in _parts(content, where):
        if part["type"] != "text":
            raise not_supported(
                f"{where} has an image or a sound, which only users and tools may send"
            )
        yield part["text"]


def _parts(content: Any, where: str) -> Iterable[dict[str, Any]]:
    if isinstance(content, str):
        yield {"type": "text", "text": content}
        return
    if not isinstance(content, list):
        raise RequestError(f"{where} must have a text or a list of parts, not {shorten(content)}")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal":
            yield {"type": "text", "text": str(part.get("refusal", ""))}
        elif kind == "input_image":
            yield {"type": "image_url", "image_url": {"url": _text(part, "image_url", where)}}
        elif kind == "input_audio":
            yield part
        elif kind not in ("input_text", "output_text", "text"):
            raise not_supported(
                f"{where} has a part of type {shorten(kind)}, which is not supported"
            )
        else:
            yield {"type": "text", "text": _text(part, "text", where)}


def _text(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise wrong_value(f"{where}.{name}", value, "a text")
    return value


def _thoughts(item: dict[str, Any], where: str) -> str:
    """The text of a reasoning item; an encrypted one has none."""
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list):
        raise wrong_value(where, parts, "a reasoning item with a list of parts")
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(tool.get("name"), str):
        raise RequestError(f"tools.{index}.name is required and must be a text")
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _response_format(wanted: Any) -> dict[str, Any] | None:
    if wanted is None:
        return None
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    match kind:
        case "text":
            return None
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            names = ("name", "schema", "strict", "description")
            return {
                "type": "json_schema",
                "json_schema": {n: wanted[n] for n in names if n in wanted},
            }
    raise wrong_value("text.format.type", kind, "text, json_object or json_schema")
