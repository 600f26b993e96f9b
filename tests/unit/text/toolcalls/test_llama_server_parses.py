"""Our messages against llama-server's, for answers of all templates of its collection."""

from __future__ import annotations

import json
import lzma
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.templates.answers import PARSES
from tests.templates.conversations import FIXTURE
from tests.unit.text.toolcalls import test_parser

from headstart.text.chat_template import ChatTemplate
from headstart.text.toolcalls.events import AnswerMessage
from headstart.text.toolcalls.find import find_format

FAMILIES = [
    "Qwen-Qwen3-0.6B", "Qwen3-Coder", "meta-llama-Llama-3.1-8B-Instruct", "GLM-4.6",
    "mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506",
    "deepseek-ai-DeepSeek-V3.1", "deepseek-ai-DeepSeek-V3.2", "Kimi-K2-Thinking", "Kimi-K3",
    "openai-gpt-oss-120b", "google-gemma-4-31B-it", "MiniMax-M2", "MiniMax-M3", "LFM2.5-8B-A1B",
    "ibm-granite-granite-4.0", "Apertus-8B-Instruct", "meetkai-functionary-medium-v3.2",
    "ByteDance-Seed-OSS", "tencent-Hy3", "muse-glimmer", "Cohere2MoE", "GLM-4.7-Flash",
    "upstage-Solar-Open-100B",
]  # fmt: skip


@cache
def templates() -> dict[str, str]:
    return json.loads(lzma.decompress(FIXTURE.read_bytes()))["templates"]


@cache
def recording() -> dict[str, dict[str, Any]]:
    """name -> kind -> record."""
    found: dict[str, dict[str, Any]] = {}
    for record in json.loads(lzma.decompress(PARSES.read_bytes())):
        found.setdefault(record["name"], {})[record["kind"]] = record
    return found


@cache
def reader_of(name):
    template = ChatTemplate(templates()[name])
    return template, find_format(template)


def read(name, record, pieces):
    template, answer_format = reader_of(name)
    start = "thoughts" if template.opens_thoughts(record["generation_prompt"]) else "answer"
    return test_parser.read(answer_format, pieces, start)


def value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def as_llama_server(message: AnswerMessage) -> Any:
    calls = [(call.name, value(call.arguments), call.call_id) for call in message.calls]
    return message.content, message.thoughts, calls


def recorded(message: dict[str, Any] | None) -> Any:
    """None where it could not read the answer."""
    if message is None:
        return None
    calls = [(call["function"], call.get("id", "")) for call in message.get("tool_calls", ())]
    return (
        message["content"],
        message.get("reasoning_content", ""),
        [(function["name"], value(function["arguments"]), call_id) for function, call_id in calls],
    )


@cache
def differences_with_a_reason() -> dict[str, set[str]]:
    """template -> kinds of answers, from the table in tests/templates."""
    table = Path(__file__).parents[3] / "templates" / "differences.md"
    text = table.read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for names, kinds in re.findall(r"^\| ([\w., -]+) \| ([\w, ]+) \| [^|]+ \|$", text, re.M):
        for name in names.split(", "):
            found.setdefault(name, set()).update(kinds.split(", "))
    return found


@pytest.mark.parametrize("name", sorted(recording()))
def test_messages_are_llama_servers_or_differ_for_a_stated_reason(name):
    differing = {
        kind
        for kind, record in recording()[name].items()
        if as_llama_server(read(name, record, [record["text"]])) != recorded(record["message"])
    }
    assert differing == differences_with_a_reason().get(name, set())


@pytest.mark.parametrize("name", sorted(recording()))
def test_one_character_at_a_time_gives_the_same_messages(name):
    for record in recording()[name].values():
        whole = read(name, record, [record["text"]])
        assert read(name, record, record["text"]).events == whole.events


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_family_writes_is_read_back(name):
    records = recording()[name]
    kind = "all" if "all" in records and name not in ("muse-glimmer",) else "call"
    calls = read(name, records[kind], [records[kind]["text"]]).calls
    assert json.loads(calls[0].arguments) == {"city": "Paris", "days": 2}
    assert [call.name for call in calls] in (["get_weather"], ["get_weather", "send"])
