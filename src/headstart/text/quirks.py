"""Adaptations for single templates, recognized by words that only they contain.

Sources: llama.cpp's common/chat.cpp and common/parsers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

Messages = list[dict[str, Any]]
Adapt = Callable[[Messages], Messages]


def _trim(messages: Messages) -> Messages:
    """StepFun: white space around text leads to reasoning loops."""
    for message in messages:
        for name in ("content", "reasoning_content"):
            if isinstance(message.get(name), str):
                message[name] = message[name].strip()
        if isinstance(message["content"], list):
            for part in message["content"]:
                part["text"] = part["text"].strip()
    return messages


def thinking_parts(messages: Messages) -> Messages:
    """Ministral 3: reasoning is a part of the content."""
    for message in messages:
        if message["role"] not in ("system", "assistant"):
            continue
        parts: list[dict[str, Any]] = []
        if thoughts := message.pop("reasoning_content", None):
            parts.append({"type": "thinking", "thinking": thoughts})
        content = message["content"]
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
        message["content"] = parts
    return messages


def _thinking_field(messages: Messages) -> Messages:
    """LFM2: reasoning is called `thinking`."""
    for message in messages:
        if "reasoning_content" in message:
            message["thinking"] = message["reasoning_content"]
    return messages


def _harmony(messages: Messages) -> Messages:
    """gpt-oss: reasoning is called `thinking`, and a call with reasoning has no content."""
    for message in _thinking_field(messages):
        if "thinking" in message and message.get("tool_calls"):
            del message["content"]
    return messages


def sort_results(messages: Messages) -> Messages:
    """DeepSeek V4: tool results follow in the order of their calls."""
    order: dict[str, int] = {}
    start = 0
    while start < len(messages):
        calls = messages[start].get("tool_calls")
        if calls:
            order = {call.get("id", ""): index for index, call in enumerate(calls)}
        end = start
        while end < len(messages) and messages[end]["role"] in ("user", "tool"):
            end += 1
        places = [at for at in range(start, end) if messages[at]["role"] == "tool"]
        results = [messages[at] for at in places]
        results.sort(key=lambda result: order.get(result.get("tool_call_id", ""), 0))
        for at, result in zip(places, results, strict=True):
            messages[at] = result
        start = max(end, start + 1)
    return messages


def _tool_responses(messages: Messages) -> Messages:
    """Gemma 4's older templates: tool results and the answer belong to the calling message."""
    merged: Messages = []
    rest = list(messages)
    while rest:
        message = rest.pop(0)
        if message["role"] != "assistant" or not message.get("tool_calls"):
            merged.append(message)
            continue
        calls = message["tool_calls"]
        whole: dict[str, Any] = {"role": "assistant", "tool_calls": calls}
        responses: list[dict[str, Any]] = []
        while rest and rest[0]["role"] == "tool":
            result = rest.pop(0)
            call = calls[len(responses)] if len(responses) < len(calls) else None
            name = call["function"]["name"] if call else result.get("tool_call_id", "")
            responses.append({"name": name, "response": _value(result["content"])})
        if responses:
            whole["tool_responses"] = responses
        is_answered = rest and rest[0]["role"] == "assistant" and not rest[0].get("tool_calls")
        if is_answered and rest[0]["content"]:
            whole["content"] = rest.pop(0)["content"]
        if "reasoning_content" in message:
            whole["reasoning_content"] = message["reasoning_content"]
        merged.append(whole)
    return merged


def _value(content: Any) -> Any:
    """A tool result parsed as JSON, or unchanged."""
    try:
        return json.loads(content)
    except (TypeError, ValueError):
        return content


_QUIRKS: Sequence[tuple[tuple[str, ...], str, Adapt]] = (
    # words that the template contains, a word that it does not, and what it needs
    (("the following functions in JSONSchema format",), "", _trim),
    (("[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]"), "[CALL_ID]", thinking_parts),
    (("<|channel|>",), "", _harmony),
    (("<|tool_list_start|>",), "", _thinking_field),
    (("List of tools: [",), "", _thinking_field),
    (("dsml_token", "tool_calls"), "function_calls", sort_results),
    (("'<|tool_call>call:'",), "{#- OpenAI Chat Completions:", _tool_responses),
)
_PATCHES = (
    (
        '{%- if "<|channel|>analysis<|message|>" in message.content or '
        '"<|channel|>final<|message|>" in message.content %}'
    ),
    (
        "{%- if (message['content'] is none or message['content'] == '' or "
        "message['content']|length == 0) and (message['tool_calls'] is not defined or "
        "message['tool_calls'] is none or message['tool_calls']|length == 0) %}"
    ),
)
"""Conditions under which two templates (gpt-oss, Mistral) refuse messages that they can render."""


def patch_source(source: str) -> str:
    """The template without conditions that reject messages it can render."""
    for condition in _PATCHES:
        source = source.replace(condition, "{%- if false %}")
    return source


def find_quirk(source: str) -> Adapt:
    """The adaptation for a template."""
    for words, absent, adapt in _QUIRKS:
        if all(word in source for word in words) and not (absent and absent in source):
            return adapt
    return lambda messages: messages


def finish_prompt(text: str, *, add_generation_prompt: bool, source: str) -> str:
    """Correct the end of a rendered prompt where a template ends it wrongly."""
    if "<|channel|>" in source and not add_generation_prompt:
        # the last answer is not final when it is continued
        before, marker, after = text.rpartition("<|return|>")
        return before + "<|end|>" + after if marker else text
    if add_generation_prompt and "'<|tool_call>call:'" in source and text.endswith("<turn|>\n"):
        return text + "<|turn>model\n"  # missing after an answer with calls
    return text


def answer_opening(source: str) -> str:
    """The start of an answer to the user where a template names recipients."""
    return "all\n" if ">>>all" in source and ">>>${recipient}" in source else ""
