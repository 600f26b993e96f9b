"""Chooses how chat answers are parsed and constrained, by tools and reasoning format."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from headstart.server.conversation import chat_thoughts, thought_marks
from headstart.server.dialect import Choice
from headstart.server.errors import shorten, wrong_value
from headstart.server.schemas import ChatBody
from headstart.server.service import ServedModel
from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.constraint import CallRules
from headstart.text.toolcalls.formats import JsonCall, MarkedCalls
from headstart.text.toolcalls.reader import AnswerReader, Tools
from headstart.types import Vocab
from headstart.types.constraint import Constraint, ThoughtMarks
from headstart.types.errors import RequestError


def prepare_reading(body: ChatBody, model: ServedModel, choices: Sequence[Choice]) -> None:
    """Give each choice its parser, and its request the constraint of the tools."""
    chat = choices[0].prompt
    # the tools were checked when they were rendered
    tools = {tool["function"]["name"]: tool["function"] for tool in body.tools or ()}
    mode, names = _tool_choice(body, tools)
    answer_format, constraint = model.answer_format, choices[0].request.constraint
    if mode == "required" and answer_format.calls is None and not constraint:
        # the model has no format of its own, or one that cannot be required
        calls = MarkedCalls("json", JsonCall(), is_parallel=False)
        answer_format = AnswerFormat(thinking=answer_format.thinking, calls=calls)
    splits_thoughts = (body.reasoning_format or model.config.chat.reasoning_format) != "none"
    read = tools if mode != "none" and body.parse_tool_calls else {}
    marks = thought_marks(answer_format, chat, model.vocab)
    rules = CallRules(tools, names, _is_parallel(body, model), _token_finder(model.vocab))
    if constraint:  # as in llama-server, it applies even where calls are required
        if marks and not (marks.is_open or splits_thoughts or constraint.triggers):
            marks = None  # reasoning would be content
        is_begun = chat.start == "content"
        constraint = _of_the_body(constraint, answer_format, marks, rules, is_begun=is_begun)
    elif tools and mode != "none":
        if mode != "required" and not splits_thoughts:  # reasoning may contain calls, too
            marks = None
        constraint = _of_the_tools(answer_format, rules, marks, mode)
    shown = _marker_tokens(answer_format, model.vocab)
    limit = chat_thoughts(body, model, chat)
    for choice in choices:
        choice.parser = AnswerReader(
            answer_format.read, read, chat.start, splits_thoughts=splits_thoughts
        )
        choice.request = dataclasses.replace(
            choice.request, constraint=constraint, shown_tokens=shown, thoughts=limit
        )


def _tool_choice(body: ChatBody, tools: Tools) -> tuple[str, Sequence[str]]:
    """auto, none or required, and the names of the tools that may be called."""
    choice = body.tool_choice
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        if not isinstance(name, str) or name not in tools:
            raise RequestError(
                f"tool_choice names {shorten(name)} but "
                + (f"the tools are {', '.join(tools)}" if tools else "there are no tools")
            )
        return "required", (name,)
    choice = choice or "auto"
    if choice not in ("auto", "none", "required"):
        wanted = 'auto, none, required or {"type": "function", "function": {"name": ...}}'
        raise wrong_value("tool_choice", choice, wanted)
    return choice if tools else "none", tuple(tools)


def _is_parallel(body: ChatBody, model: ServedModel) -> bool:
    if body.parallel_tool_calls is not None:
        return body.parallel_tool_calls
    return model.template.capabilities.supports_parallel_tool_calls


def _of_the_tools(
    answer_format: AnswerFormat, rules: CallRules, marks: ThoughtMarks | None, mode: str
) -> Constraint | None:
    """The constraint of required calls, or of those that may follow a trigger."""
    calls = answer_format.calls
    if calls is None:
        return None
    if mode == "required":
        before = rules.before(answer_format.after_thoughts, "") if marks else ""
        return dataclasses.replace(rules.required(calls), thoughts=marks, before=before)
    constraint = rules.at_trigger(calls)
    if constraint is None or answer_format.calls_end_thoughts:
        return constraint
    return dataclasses.replace(constraint, thoughts=marks)


def _of_the_body(
    constraint: Constraint,
    answer_format: AnswerFormat,
    marks: ThoughtMarks | None,
    rules: CallRules,
    *,
    is_begun: bool,
) -> Constraint:
    """A body's own constraint, applied to the text after the reasoning."""
    if constraint.triggers:
        return dataclasses.replace(constraint, thoughts=marks)
    if answer_format.thinking is None or is_begun:
        return constraint
    after = answer_format.after_thoughts
    header = answer_format.thinking.answer.removeprefix(after)
    before = rules.before(after, header)
    return dataclasses.replace(constraint, thoughts=marks, before=before)


def _marker_tokens(answer_format: AnswerFormat, vocab: Vocab) -> frozenset[int]:
    """The special tokens of the markers, whose spelling the parser needs."""
    tokens: set[int] = set()
    for marker in answer_format.markers:
        tokens.update(vocab.tokenize(marker, add_special=False, parse_special=True))
    return frozenset(filter(vocab.is_control, tokens)) - vocab.eog_ids


def _token_finder(vocab: Vocab) -> Any:
    def token_of(text: str) -> int | None:
        tokens = vocab.tokenize(text, add_special=False, parse_special=True)
        return tokens[0] if len(tokens) == 1 and vocab.is_control(tokens[0]) else None

    return token_of


def describe(answer_format: AnswerFormat) -> dict[str, Any]:
    """A format as /props shows it."""
    thinking = answer_format.thinking
    return {
        "tool_calls": answer_format.calls.name if answer_format.calls else None,
        "tool_call_triggers": [answer_format.calls.trigger] if answer_format.calls else [],
        "why_no_tool_calls": answer_format.why_no_calls or None,
        "thinking_start": thinking.start if thinking else None,
        "thinking_end": thinking.end if thinking else None,
    }
