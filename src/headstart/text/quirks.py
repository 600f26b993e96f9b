"""Special handling of templates, recognized by words that only they contain.

Sources: llama.cpp's common/chat.cpp, common/chat-diff-analyzer.cpp and common/parsers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from headstart.text.thinking import Thinking
from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.families import (
    functionary,
    gemma4,
    harmony,
    lfm2,
    minimax_m3,
    muse,
)
from headstart.text.toolcalls.formats import MarkedCalls, NamedCall, TaggedArguments
from headstart.text.toolcalls.json_text import value_or_text

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """Special handling of the templates that contain all of some words."""

    words: tuple[str, ...] = ()
    absent: str = ""  # a word that they do not contain
    adapt: Callable[[Messages], Messages] = lambda messages: messages  # before rendering
    finish: Callable[[str, bool], str] = lambda text, adds_generation_prompt: text  # a prompt
    knows_developers: bool = False  # the role
    thinking: Thinking | None = None
    answers: AnswerFormat | None = None  # without its thinking
    answer_opening: str = ""  # the start of an answer to the user where recipients are named
    calls_end_thoughts: bool = False  # models may call without ending their reasoning


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


def _thinking_parts(messages: Messages) -> Messages:
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
            content = result["content"]
            said = value_or_text(content) if isinstance(content, str) else content
            responses.append({"name": name, "response": said})
        if responses:
            whole["tool_responses"] = responses
        is_answered = rest and rest[0]["role"] == "assistant" and not rest[0].get("tool_calls")
        if is_answered and rest[0]["content"]:
            whole["content"] = rest.pop(0)["content"]
        if "reasoning_content" in message:
            whole["reasoning_content"] = message["reasoning_content"]
        merged.append(whole)
    return merged


def _finish_harmony(text: str, adds_generation_prompt: bool) -> str:
    """The last answer is not final when it is continued."""
    before, marker, after = text.rpartition("<|return|>")
    return before + "<|end|>" + after if marker and not adds_generation_prompt else text


def _finish_gemma4(text: str, adds_generation_prompt: bool) -> str:
    """The generation prompt is missing after an answer with calls."""
    is_missing = adds_generation_prompt and text.endswith("<turn|>\n")
    return text + "<|turn>model\n" if is_missing else text


_THINK = Thinking("<think>", "</think>")
QUIRKS = (
    Quirks(words=("the following functions in JSONSchema format",), adapt=_trim),
    Quirks(
        words=("[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]"),
        absent="[CALL_ID]",
        adapt=_thinking_parts,
        thinking=Thinking("[THINK]", "[/THINK]", opening=""),
    ),
    Quirks(words=(">>>all", ">>>${recipient}"), answers=functionary.FORMAT, answer_opening="all\n"),
    Quirks(
        words=("<|channel|>",),
        adapt=_harmony,
        finish=_finish_harmony,
        knows_developers=True,
        thinking=Thinking(
            "<|channel|>analysis<|message|>",
            "<|end|>",
            "<|start|>assistant<|channel|>final<|message|>",
        ),
        answers=harmony.FORMAT,
    ),
    Quirks(
        words=("<atem:function_calls>", "<|eom|>"),
        thinking=Thinking(
            " to=self<|message|>",
            "<|eom|>",
            "<|start|>assistant to=user<|message|>",
            opening="<|start|>assistant",
        ),
        answers=muse.FORMAT,
    ),
    Quirks(
        words=("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        thinking=_THINK,
        calls_end_thoughts=True,
    ),
    Quirks(
        words=("<|open|>", "<|close|>", "<|end_of_msg|>"),
        thinking=Thinking(
            "<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>"
        ),
        answers=AnswerFormat(  # source: Kimi K3's template in llama.cpp's models/templates
            calls=MarkedCalls(
                "kimi-k3",
                NamedCall(
                    '{name}" index="{number}"<|sep|>',
                    TaggedArguments(
                        key_start='<|open|>argument key="',
                        key_end='" type="',
                        value_end="<|close|>argument<|sep|>",
                        attribute_end='"<|sep|>',
                        text_attribute="string",
                    ),
                ),
                section_start="<|open|>tools<|sep|>",
                section_end="<|close|>tools<|sep|>",
                call_start='<|open|>call tool="',
                call_end="<|close|>call<|sep|>",
            ),
            content_start="<|open|>response<|sep|>",
            content_end="<|close|>response<|sep|>",
            dropped=("<|close|>message<|sep|>", "<|end_of_msg|>"),
        ),
    ),
    Quirks(
        words=("<|START_TEXT|>", "<|START_ACTION|>"),
        thinking=Thinking("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>"),
    ),
    Quirks(words=("<|START_ACTION|>",), calls_end_thoughts=True),
    Quirks(
        words=("<|tool_list_start|>", "<|tool_list_end|>"),
        adapt=_thinking_field,
        thinking=_THINK,
        answers=lfm2.FORMAT,
    ),
    Quirks(
        words=("List of tools: [",), adapt=_thinking_field, thinking=_THINK, answers=lfm2.FORMAT
    ),
    Quirks(
        words=("dsml_token", "DSML", "function_calls"), thinking=_THINK, calls_end_thoughts=True
    ),
    Quirks(
        words=("dsml_token", "DSML", "tool_calls"),
        absent="function_calls",
        adapt=sort_results,
        thinking=Thinking(
            "<think>", "</think>", opening="<\uff5cAssistant\uff5c>", skips_empty=True
        ),
        calls_end_thoughts=True,
    ),
    Quirks(
        words=("'<|tool_call>call:'",),
        finish=_finish_gemma4,
        thinking=Thinking("<|channel>thought\n", "<channel|>"),
        answers=gemma4.FORMAT,
    ),
    Quirks(
        words=("'<|tool_call>call:'",),
        absent="{#- OpenAI Chat Completions:",
        adapt=_tool_responses,
    ),
    Quirks(words=("]<]minimax[>[", "<tool_call>", "<invoke name="), answers=minimax_m3.FORMAT),
    Quirks(
        words=("Write your thoughts between <think></think>", "<response></response>"),
        thinking=_THINK,
    ),
    Quirks(
        words=("<SPECIAL_10>", "<SPECIAL_12>", "<TOOL_RESPONSE>"),
        thinking=Thinking("<think>\n", "</think>"),
    ),
    Quirks(words=("<function=", "<parameter="), calls_end_thoughts=True),
    Quirks(words=("<role>ASSISTANT</role>", "<arg_key>"), calls_end_thoughts=True),
)


def find_quirks(source: str) -> Quirks:
    """Merge all rows that match a template; for each field the first row that sets it wins."""
    found: dict[str, Any] = {}
    for row in QUIRKS:
        if all(word in source for word in row.words) and not (row.absent and row.absent in source):
            values = {one: getattr(row, one.name) for one in fields(row)}
            found = {one.name: said for one, said in values.items() if said != one.default} | found
    return Quirks(**found)


def patch_source(source: str) -> str:
    """The template without conditions under which two (gpt-oss, Mistral) refuse messages that they
    can render.
    """
    for condition in (
        (
            '{%- if "<|channel|>analysis<|message|>" in message.content or '
            '"<|channel|>final<|message|>" in message.content %}'
        ),
        (
            "{%- if (message['content'] is none or message['content'] == '' or "
            "message['content']|length == 0) and (message['tool_calls'] is not defined or "
            "message['tool_calls'] is none or message['tool_calls']|length == 0) %}"
        ),
    ):
        source = source.replace(condition, "{%- if false %}")
    return source
