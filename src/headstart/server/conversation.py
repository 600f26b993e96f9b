"""Renders a chat body's messages and tools; finds the markers and limits of its reasoning."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from headstart.config import ChatConfig
from headstart.server.constraints import wanted_schema
from headstart.server.errors import not_supported, shorten, wrong_value
from headstart.server.media import Media
from headstart.server.prompts import Prompt, tokenize_around
from headstart.server.schemas import ChatBody, GenerationBody, TemplateBody
from headstart.server.service import ServedModel
from headstart.structures.interruption import time_limit
from headstart.text.chat_template import ChatTemplate
from headstart.text.messages import content_text
from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.types import Vocab
from headstart.types.constraint import NO_LIMIT, ThoughtLimit, ThoughtMarks
from headstart.types.errors import RequestError

Part = Literal["content", "reasoning_content"]
TEMPLATE_SECONDS = 5.0  # per conversation


def read_chat(body: TemplateBody, model: ServedModel, context_size: int, media: Media) -> Prompt:
    """Render messages, and tokenize them."""
    chat = render_chat(body, model)
    read = tokenize_around(chat.text, media, model.vocab, context_size)
    return dataclasses.replace(chat, tokens=read.tokens, media=read.media)


def render_chat(body: TemplateBody, model: ServedModel) -> Prompt:
    """The prompt of messages, not tokenized; without the start token if tokenizing adds it.

    Raises:
        HeadstartError: the messages cannot be rendered, or the template takes too long.
    """
    late = RequestError(
        f"the chat template took longer than {TEMPLATE_SECONDS:g} s for these messages; send less, "
        "or start with another --chat-template-file"
    )
    template, defaults = model.template, model.config.chat
    with time_limit(TEMPLATE_SECONDS, late):
        tools = read_tools(body.tools)
        messages = [_check_message(index, message) for index, message in enumerate(body.messages)]
        arguments = _template_arguments(body, defaults)
        if template.reads_schema and (schema := wanted_schema(body)):
            arguments["response_format"] = schema
        options: dict[str, Any] = {"tools": tools, "arguments": arguments}
        part = _continued_part(body, defaults)
        if part is None:
            is_asked = body.add_generation_prompt is not False
            text = template.render(messages, add_generation_prompt=is_asked, **options)
            rendered = _opened(template, text, messages, options)
        else:
            rendered = _continue(template, messages, options, part)
    text = rendered.text
    if model.vocab.add_bos:
        text = text.removeprefix(template.bos_token)
    end = template.thinking.end.strip() if template.thinking else ""
    is_closed = bool(end) and text.rstrip().endswith(end)
    may_think = not is_closed and arguments.get("enable_thinking") is not False
    return dataclasses.replace(rendered, text=text, may_think=may_think)


def _continue(
    template: ChatTemplate, messages: Sequence[dict[str, Any]], options: dict[str, Any], part: Part
) -> Prompt:
    """Render the messages, the last one as the start of the answer."""
    *before, last = messages
    text = template.render(before, add_generation_prompt=False, **options)
    prompt = template.generation_prompt(before, **options)
    content = content_text(last.get("content"), "\n\n")  # joined as in llama-server
    thoughts = last.get("reasoning_content") or ""
    begun = template.continuation(
        prompt, thoughts=thoughts, content=None if part == "reasoning_content" else content
    )
    if part == "reasoning_content":
        return Prompt((), text + begun, echo="", start="thoughts")
    return Prompt((), text + begun, echo=content, start="content")


def _opened(
    template: ChatTemplate, text: str, messages: Sequence[dict[str, Any]], options: dict[str, Any]
) -> Prompt:
    """Detect whether the prompt's end opens the answer's reasoning."""
    start = template.thinking.start.strip() if template.thinking else ""
    is_open = bool(start) and start in text[-256:]  # templates open it at the prompt's end
    if is_open and not text.rstrip().endswith(start):  # the marker may belong to a message
        is_open = template.opens_thoughts(template.generation_prompt(messages, **options))
    return Prompt((), text, echo="", start="thoughts" if is_open else "answer")


def _continued_part(body: TemplateBody, defaults: ChatConfig) -> Part | None:
    """Which part of the last message the answer continues; None if it is a new one."""
    part: Part | bool | None = body.continue_final_message
    if part not in (None, True, False, "content", "reasoning_content"):
        raise not_supported(
            f"continue_final_message is {shorten(part)} but must be true, false, content or "
            "reasoning_content"
        )
    roles = [message.get("role") for message in body.messages]
    if part and roles[-1:] != ["assistant"]:
        raise RequestError("continue_final_message needs a last message of role assistant")
    if part and body.add_generation_prompt:
        raise RequestError(
            "add_generation_prompt and continue_final_message exclude each other; set one of them"
        )
    if part is False or roles[-1:] != ["assistant"]:
        return None
    if not part and not defaults.prefill_assistant:
        return None
    if not part and roles[-2:] == ["assistant", "assistant"]:
        raise RequestError("the last two messages are both of role assistant; join them")
    last = body.messages[-1]
    if last.get("tool_calls"):
        raise RequestError("an assistant message with tool_calls cannot be continued")
    if isinstance(part, str):
        return part
    has_only_reasoning = last.get("reasoning_content") and not last.get("content")
    return "reasoning_content" if has_only_reasoning else "content"


def _check_message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """Return the message if it has a role and only text and calls."""
    where, role = f"messages.{index}", message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{where}.role is required and must be a text, for instance user")
    if role != "assistant" and "content" not in message:
        raise RequestError(f"{where}.content is required")
    if role != "assistant" and message["content"] is None:  # a tool without output
        message = message | {"content": ""}
    _check_content(where, message.get("content"))
    thoughts = message.get("reasoning_content")
    if thoughts is not None and not isinstance(thoughts, str):
        raise RequestError(f"{where}.reasoning_content must be a text, not {shorten(thoughts)}")
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise RequestError(f"{where}.tool_calls must be a list, not {shorten(calls)}")
    for at, call in enumerate(calls or ()):
        _check_call(f"{where}.tool_calls.{at}", call)
    return message


def _check_content(where: str, content: Any) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise RequestError(
            f"{where}.content must be a text or a list of parts, not {shorten(content)}"
        )
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "media_marker"):
            raise not_supported(
                f"{where}.content has a part of type {shorten(kind)}, which is not supported"
            )
        if not isinstance(part.get("text"), str):
            raise RequestError(f"{where}.content has a text part without a text")


def _check_call(where: str, call: Any) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f'{where} must be {{"type": "function", "function": {{"name": ...}}}}')
    if not isinstance(function.get("arguments", ""), str | dict):
        raise RequestError(f"{where}.function.arguments must be JSON text, or an object")


def read_tools(tools: Any) -> list[dict[str, Any]]:
    """The tools of a body, checked for their names and parameters."""
    for index, tool in enumerate(tools or ()):
        where = f"tools.{index}"
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type", "function") != "function":
            raise RequestError(
                f'{where} must be {{"type": "function", "function": {{...}}}}: {shorten(tool)}'
            )
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise RequestError(f"{where}.function.name is required and must be a text")
        if not isinstance(function.get("description") or "", str):
            raise RequestError(f"{where}.function.description must be a text")
        if not isinstance(function.get("parameters") or {}, dict):
            raise RequestError(f"{where}.function.parameters must be a JSON schema, an object")
    return list(tools or ())


def _template_arguments(body: TemplateBody, defaults: ChatConfig) -> dict[str, Any]:
    arguments = {**defaults.template_arguments, **body.chat_template_kwargs}
    if body.reasoning_effort == "none":
        arguments["enable_thinking"] = False
        arguments.pop("reasoning_effort", None)
    elif body.reasoning_effort:
        arguments["reasoning_effort"] = body.reasoning_effort
    if isinstance(arguments.get("enable_thinking"), str):
        raise wrong_value(
            "chat_template_kwargs.enable_thinking", arguments["enable_thinking"], "true or false"
        )
    return arguments


def thought_marks(answer_format: AnswerFormat, chat: Prompt, vocab: Vocab) -> ThoughtMarks | None:
    """How an answer's reasoning is marked; None if it has none."""
    thinking = answer_format.thinking
    is_open = chat.start == "thoughts"
    if thinking is None or not thinking.end.strip() or not (is_open or chat.may_think):
        return None
    start = thinking.start.strip()
    is_first = chat.start == "answer" and bool(start)
    tokens = vocab.tokenize(start, add_special=False, parse_special=True) if is_first else ()
    return ThoughtMarks(start.encode(), thinking.end.strip().encode(), is_open, tuple(tokens))


def chat_thoughts(body: ChatBody, model: ServedModel, chat: Prompt) -> ThoughtLimit | None:
    """The limit on a chat answer's reasoning; None without one."""
    budget, thinking = _budget(body, model.config.chat), model.answer_format.thinking
    if thinking is None or (budget < 0 and not body.reasoning_control):
        return None
    begins_with_thoughts = not thinking.start and chat.start == "answer" and chat.may_think
    return ThoughtLimit(
        max_tokens=budget if budget >= 0 else NO_LIMIT,
        start=thinking.start.strip().encode(),
        ends=(thinking.end.strip().encode(),),
        closing=_closing(body, model, thinking.end + thinking.answer),
        is_thinking=chat.start == "thoughts" or begins_with_thoughts,
    )


def tagged_thoughts(body: GenerationBody, prompt: str, model: ServedModel) -> ThoughtLimit | None:
    """The limit on reasoning whose marks are given by the body instead of a chat template.

    Raises:
        RequestError: the body has a start tag or end tags, but not both.
    """
    if isinstance(body, ChatBody):
        return None
    start, ends = body.reasoning_budget_start_tag or "", _end_tags(body)
    if not (start or ends):
        return None
    if not (start and ends):
        there, missing = ("start_tag", "end_tags") if start else ("end_tags", "start_tag")
        raise RequestError(
            f"reasoning_budget_{there} says nothing without reasoning_budget_{missing}; send both"
        )
    budget = _budget(body, model.config.chat)
    if budget < 0:
        return None
    backwards = prompt[::-1]

    def place(tag: str) -> int:
        """Where a tag is last; -1 if nowhere. `rfind` takes quadratic time, `find` linear."""
        found = backwards.find(tag[::-1])
        return -1 if found < 0 else len(prompt) - found - len(tag)

    return ThoughtLimit(
        max_tokens=budget,
        start=start.encode(),
        ends=tuple(end.encode() for end in ends),
        closing=_closing(body, model, ends[0]),
        is_thinking=place(start) > max(map(place, ends)),
    )


def _closing(body: GenerationBody, model: ServedModel, end: str) -> tuple[int, ...]:
    """The tokens that end reasoning which exceeds its budget."""
    message = body.reasoning_budget_message
    if message is None:
        message = model.config.chat.reasoning_budget_message
    return tuple(model.vocab.tokenize(message + end, add_special=False, parse_special=True))


def _end_tags(body: GenerationBody) -> list[str]:
    """The end tags; as in llama-server, also a single one, and empty ones for none."""
    single = body.reasoning_budget_end_tag
    tags = body.reasoning_budget_end_tags
    return [tag for tag in ([single or ""] if tags is None else tags) if tag]


def _budget(body: GenerationBody, defaults: ChatConfig) -> int:
    """Maximum number of reasoning tokens of an answer; -1 for no limit."""
    for budget in (body.reasoning_budget_tokens, body.thinking_budget_tokens):
        if budget not in (None, -1):
            return int(budget or 0)
    return defaults.reasoning_budget
