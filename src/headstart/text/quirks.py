"""What single templates need beside the common form of messages: one function each.

Each is found by words that only its template holds. Facts from llama.cpp's common/chat.cpp and
common/parsers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

Messages = list[dict[str, Any]]
Adapt = Callable[[Messages], Messages]


def _trim(messages: Messages) -> Messages:
    """StepFun: white space around a text drives the model into loops of thoughts."""
    for message in messages:
        for name in ("content", "reasoning_content"):
            if isinstance(message.get(name), str):
                message[name] = message[name].strip()
        if isinstance(message["content"], list):
            for part in message["content"]:
                part["text"] = part["text"].strip()
    return messages


def _thinking_parts(messages: Messages) -> Messages:
    """Ministral 3: thoughts are a part of the content."""
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
    """LFM2: thoughts are called `thinking`."""
    for message in messages:
        if "reasoning_content" in message:
            message["thinking"] = message["reasoning_content"]
    return messages


def _harmony(messages: Messages) -> Messages:
    """gpt-oss: thoughts are called `thinking`, and a call with thoughts has no content."""
    for message in _thinking_field(messages):
        if "thinking" in message and message.get("tool_calls"):
            del message["content"]
    return messages


def _sort_results(messages: Messages) -> Messages:
    """DeepSeek V4: results follow in the order of their calls."""
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
    """Gemma 4's older templates: results and the answer are part of the message that called."""
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
    """What a tool's text says, if it is JSON."""
    try:
        return json.loads(content)
    except (TypeError, ValueError):
        return content


QUIRKS: Sequence[tuple[Callable[[str], bool], Adapt]] = (
    (lambda source: "the following functions in JSONSchema format" in source, _trim),
    (
        lambda source: (
            all(word in source for word in ("[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]"))
            and "[CALL_ID]" not in source
        ),
        _thinking_parts,
    ),
    (lambda source: "<|channel|>" in source, _harmony),
    (
        lambda source: "<|tool_list_start|>" in source or "List of tools: [" in source,
        _thinking_field,
    ),
    (
        lambda source: (
            "dsml_token" in source and "tool_calls" in source and "function_calls" not in source
        ),
        _sort_results,
    ),
    (
        lambda source: (
            "'<|tool_call>call:'" in source and "{#- OpenAI Chat Completions:" not in source
        ),
        _tool_responses,
    ),
)
"""How a template is known, and what it needs."""

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
    """The template without refusals that only stop it from rendering harmless messages."""
    for condition in _PATCHES:
        source = source.replace(condition, "{%- if false %}")
    return source


def find_quirk(source: str) -> Adapt:
    """What a template needs done to adapted messages."""
    for matches, adapt in QUIRKS:
        if matches(source):
            return adapt
    return lambda messages: messages


def finish_prompt(text: str, *, add_generation_prompt: bool, source: str) -> str:
    """Mend the end of a rendered prompt where a template does not end it as its model wants."""
    if "<|channel|>" in source and not add_generation_prompt:
        # what is the last answer here was not the last one when the model read on
        before, marker, after = text.rpartition("<|return|>")
        return before + "<|end|>" + after if marker else text
    if add_generation_prompt and "'<|tool_call>call:'" in source and text.endswith("<turn|>\n"):
        return text + "<|turn>model\n"  # after an answer with calls the template adds none
    return text


def answer_opening(source: str) -> str:
    """What an answer to the user begins with where a template names the recipient."""
    return "all\n" if ">>>all" in source and ">>>${recipient}" in source else ""
