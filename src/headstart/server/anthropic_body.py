"""A body of Anthropic's messages API as one of OpenAI's chat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from pydantic import ConfigDict, Field

from headstart.server.body import Body, Int, make_body
from headstart.server.errors import ApiError, not_supported, shorten
from headstart.server.schemas import ChatBody

DEFAULT_MAX_TOKENS = 4096  # llama-server's, of a body that names none
# of chat, taken as they are
_SAME = (
    "temperature", "top_p", "top_k", "stream", "chat_template_kwargs", "seed", "min_p",
    "speculative", "cache_prompt", "id_slot",
)  # fmt: skip


class MessagesBody(Body):
    """POST /v1/messages and /v1/messages/count_tokens."""

    model_config = ConfigDict(extra="allow")

    messages: list[dict[str, Any]]
    system: Any = Field(default=None, description="a text, or a list of text blocks")
    max_tokens: Int | None = None
    stop_sequences: list[str] = Field(default_factory=list)
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: dict[str, Any] | None = Field(
        default=None, description="{type: auto, any, none, or tool with a name}"
    )
    thinking: dict[str, Any] | None = Field(
        default=None, description="{type: enabled or disabled, budget_tokens}"
    )


def chat_body(body: MessagesBody) -> ChatBody:
    """The same request as a chat.

    Raises:
        ApiError: a block that cannot be honoured.
    """
    extra = body.model_extra or {}
    data: dict[str, Any] = {name: extra[name] for name in _SAME if name in extra}
    messages = body.messages or [{"role": "user", "content": ""}]
    data["messages"] = [*_system(body.system), *_messages(messages)]
    data["max_tokens"] = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if body.stop_sequences:
        data["stop"] = body.stop_sequences
    if body.tools:
        data["tools"] = [_tool(index, tool) for index, tool in enumerate(body.tools)]
    if body.tool_choice:
        data |= _tool_choice(body.tool_choice)
    if body.thinking:
        is_on = body.thinking.get("type") != "disabled"
        if is_on and body.thinking.get("budget_tokens") is not None:
            data["reasoning_budget_tokens"] = body.thinking["budget_tokens"]
        kwargs = data.get("chat_template_kwargs") or {}
        data["chat_template_kwargs"] = {"enable_thinking": is_on} | kwargs
    return make_body(ChatBody, data)


def _system(system: Any) -> list[dict[str, Any]]:
    if system is None:
        return []
    text = system if isinstance(system, str) else _text_of(system, "system")
    return [{"role": "system", "content": text}]


def _messages(messages: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    for index, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            yield from _blocks(message.get("role"), content, f"messages.{index}.content")
        else:
            yield message


def _blocks(role: Any, blocks: list[Any], where: str) -> Iterable[dict[str, Any]]:
    """One message of the blocks, and one of role tool for each result among them."""
    texts: list[dict[str, str]] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    thoughts = ""
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        match kind:
            case "text":
                texts.append({"type": "text", "text": str(block.get("text", ""))})
            case "thinking":
                thoughts += str(block.get("thinking", ""))
            case "redacted_thinking":
                continue
            case "tool_use":
                calls.append(_call(block))
            case "tool_result":
                results.append(_result(block, where))
            case "image" | "document":
                raise not_supported(
                    f"{where}: image input is not supported: this server reads text only"
                )
            case _:
                raise ApiError(
                    400, f"{where} has a block of type {shorten(kind)}, which is not known here"
                )
    if texts or calls or thoughts:
        said: dict[str, Any] = {"role": role, "content": texts or ""}
        yield (
            said
            | ({"tool_calls": calls} if calls else {})
            | ({"reasoning_content": thoughts} if thoughts else {})
        )
    yield from results


def _call(block: dict[str, Any]) -> dict[str, Any]:
    arguments = orjson.dumps(block.get("input") or {}).decode()
    return {
        "id": str(block.get("id", "")),
        "type": "function",
        "function": {"name": str(block.get("name", "")), "arguments": arguments},
    }


def _result(block: dict[str, Any], where: str) -> dict[str, Any]:
    content = block.get("content")
    text = content if isinstance(content, str) else _text_of(content or [], where)
    return {"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": text}


def _text_of(blocks: Any, where: str) -> str:
    if not isinstance(blocks, list):
        raise ApiError(400, f"{where} must be a text or a list of blocks, not {shorten(blocks)}")
    texts = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "image":
            raise not_supported(
                f"{where}: image input is not supported: this server reads text only"
            )
        if kind != "text":
            raise ApiError(400, f"{where} has a block of type {shorten(kind)} but must have text")
        texts.append(str(block.get("text", "")))
    return "".join(texts)


def _tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(tool.get("name"), str) or "input_schema" not in tool:
        raise ApiError(
            400,
            f"tools.{index} must have a name and an input_schema; tools of the API have neither",
        )
    function = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": tool["input_schema"],
    }
    return {"type": "function", "function": function}


def _tool_choice(choice: dict[str, Any]) -> dict[str, Any]:
    wishes: dict[str, Any] = {"auto": "auto", "any": "required", "none": "none"}
    kind = choice.get("type")
    if kind == "tool":
        wish: Any = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind in wishes:
        wish = wishes[kind]
    else:
        raise ApiError(
            400, f"tool_choice.type is {shorten(kind)} but must be auto, any, tool or none"
        )
    data: dict[str, Any] = {"tool_choice": wish}
    if choice.get("disable_parallel_tool_use"):
        data["parallel_tool_calls"] = False
    return data
