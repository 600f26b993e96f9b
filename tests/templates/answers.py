"""Answers as a chat template's model writes them: what the template makes of known messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.templates.conversations import TOOLS

from headstart.structures.prefix import common_prefix_length
from headstart.text.chat_template import ChatTemplate
from headstart.types.errors import RequestError

PARSES = Path(__file__).parent / "llama_server_parses.json.xz"
QUESTION = {"role": "user", "content": "How is the weather in Paris?"}
MAIL = {"to": ["a@b.c"], "text": 'Line 1\nLine "2"'}


def _call(at: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call{at:05}", "type": "function", "function": function}


PARIS = _call(1, "get_weather", {"city": "Paris", "days": 2})
CALLS = [PARIS, _call(2, "send", MAIL)]
THOUGHTS = {"reasoning_content": "I need a tool."}
ANSWERS: dict[str, dict[str, Any]] = {
    "content": {"content": "It rains."},
    "thoughts": {"content": "It rains.", "reasoning_content": "I should be brief."},
    "call": {"tool_calls": [PARIS]},
    "content_call": {"content": "One moment.", "tool_calls": [PARIS]},
    "thoughts_call": {"tool_calls": [PARIS], **THOUGHTS},
    "all": {"content": "One moment.", "tool_calls": CALLS, **THOUGHTS},
    "two": {"tool_calls": CALLS},
    "empty": {"tool_calls": [_call(1, "get_weather", {})]},
}


def answer_texts(template: ChatTemplate) -> dict[str, str]:
    """kind -> text, for those that the template renders."""
    prompt = template.generation_prompt([QUESTION], tools=TOOLS)
    before = template.render([QUESTION], tools=TOOLS, add_generation_prompt=False)

    def text_of(answer: dict[str, Any]) -> str | None:
        messages = [QUESTION, {"role": "assistant", "content": "", **answer}]
        try:
            text = template.render(messages, tools=TOOLS, add_generation_prompt=False)
        except RequestError:
            return None
        if not text.startswith(before):
            return None
        text = text[len(before) :]
        shared = text[: common_prefix_length(text, prompt)]
        return text[len(re.sub(r"<[^<>]*$", "", shared)) :]

    marked = text_of({"content": "S3NT1NEL"}) or ""
    end = marked.partition("S3NT1NEL")[2]
    texts = {kind: text_of(answer) for kind, answer in ANSWERS.items()}
    return {kind: text.removesuffix(end) for kind, text in texts.items() if text is not None}
