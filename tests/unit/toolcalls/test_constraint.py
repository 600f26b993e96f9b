"""Calls as grammars: what they let a model write is what the format reads."""

from __future__ import annotations

import json
import lzma

import pytest
from llguidance import LLMatcher, LLTokenizer
from tests.templates.conversations import FIXTURE, TOOLS

from headstart.grammar.source import grammar_text
from headstart.text.chat_template import ChatTemplate
from headstart.text.thinking import Thinking
from headstart.toolcalls.answer_format import ReadOptions
from headstart.toolcalls.constraint import CallRules, calls_at_a_trigger, required_calls
from headstart.toolcalls.events import AnswerMessage
from headstart.toolcalls.find import find_format
from headstart.toolcalls.formats import JsonCall, MarkedCalls
from headstart.toolcalls.parser import AnswerParser
from headstart.toolcalls.tools import Tools

TEMPLATES = json.loads(lzma.decompress(FIXTURE.read_bytes()))["templates"]
NAMES = [
    "Qwen-Qwen3-0.6B", "Qwen3-Coder", "meta-llama-Llama-3.1-8B-Instruct", "GLM-4.7-Flash",
    "mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506",
    "deepseek-ai-DeepSeek-V3.1", "deepseek-ai-DeepSeek-V3.2", "Kimi-K2-Thinking", "Kimi-K3",
    "openai-gpt-oss-120b", "MiniMax-M2", "Apertus-8B-Instruct", "upstage-Solar-Open-100B",
    "meetkai-functionary-medium-v3.2", "ByteDance-Seed-OSS", "Cohere2MoE", "tencent-Hy3",
]  # fmt: skip
HERMES = MarkedCalls(
    "json", JsonCall(), call_start="<tool_call>\n", call_end="\n</tool_call>", separator="\n"
)
PARIS = {"city": "Paris", "days": 2}
_TOKENIZER = LLTokenizer("byte")


def accepts(constraint, text):
    """Whether the constrained text may be this, and end with it."""
    matcher = LLMatcher(_TOKENIZER, grammar_text(constraint))
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def rules(tools=None, *, is_parallel=True, names=None):
    known = Tools(TOOLS if tools is None else tools)
    return CallRules(known, names or known.names, is_parallel, lambda _: None)


def written(name, *calls):
    """The text that a template makes of an answer with calls, without what ends the turn."""
    template = ChatTemplate(TEMPLATES[name])
    question = {"role": "user", "content": "Q"}
    tool_calls = [
        {
            "id": f"a1b2c3d4{at}",
            "type": "function",
            "function": {"name": called, "arguments": json.dumps(arguments)},
        }
        for at, (called, arguments) in enumerate(calls)
    ]
    answer = {"role": "assistant", "content": "", "tool_calls": tool_calls}
    return template, template.render([question, answer], tools=TOOLS, add_generation_prompt=False)


@pytest.mark.parametrize("name", NAMES)
def test_the_grammar_holds_what_the_template_writes(name):
    template, text = written(name, ("get_weather", PARIS))
    answer_format = find_format(template)
    calls = answer_format.constrained_calls
    assert calls is not None
    constraint = required_calls(calls, rules(), None, is_thinking=False)
    first = (calls.section_start + calls.call_start).strip() or "get_weather"
    if name == "meta-llama-Llama-3.1-8B-Instruct":
        first = '{"name": "get_weather"'
    if name == "openai-gpt-oss-120b":
        text = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        text, first = text + json.dumps(PARIS) + "<|call|>", text
    tail = text[text.rindex(first) :]
    assert any(accepts(constraint, tail[:end].strip()) for end in range(len(tail) + 1))


@pytest.mark.parametrize("name", NAMES)
def test_what_the_grammar_makes_a_model_write_is_read_as_calls(name):
    """Follow the grammar along random bytes; the text that comes out has to be a call."""
    template = ChatTemplate(TEMPLATES[name])
    answer_format = find_format(template)
    calls = answer_format.constrained_calls
    assert calls is not None
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"const": 3}},
            "required": ["a", "b"],
        }}}
    ]  # fmt: skip
    constraint = required_calls(calls, rules(tools, is_parallel=False), None, is_thinking=False)
    matcher = LLMatcher(_TOKENIZER, grammar_text(constraint))
    text = bytearray()
    while not matcher.is_accepting() and len(text) < 500:
        forced = matcher.compute_ff_tokens()
        token = forced[0] if forced else _lowest_legal(matcher)
        assert matcher.consume_token(token)
        text.append(token)
    parser = AnswerParser(answer_format, Tools(tools), ReadOptions())
    message = AnswerMessage()
    message.add(parser.feed(text.decode()) + parser.finish())
    assert [call.name for call in message.calls] == ["f"], text
    assert json.loads(message.calls[0].arguments)["b"] == 3


def _lowest_legal(matcher):
    mask = matcher.compute_bitmask()
    letters = [*range(ord("0"), ord("9") + 1), *range(ord("a"), ord("z") + 1)]
    ids = [*letters, *(token for token in range(256) if token not in letters)]
    return next(token for token in ids if mask[token // 8] >> (token % 8) & 1)


def call_text(arguments, name="get_weather"):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_arguments_follow_the_schema_and_are_those_declared():
    constraint = required_calls(HERMES, rules(), None, is_thinking=False)
    assert accepts(constraint, call_text('{"city": "X", "unit": "C"}'))
    assert not accepts(constraint, call_text('{"city": 5}'))
    assert not accepts(constraint, call_text('{"unit": "C"}'))
    assert not accepts(constraint, call_text('{"city": "X", "more": 1}'))
    assert not accepts(constraint, call_text('{"city": "X"}', name="unknown"))
    assert not accepts(constraint, "Text " + call_text('{"city": "X"}'))


def test_several_calls_only_where_they_may_be():
    one = call_text('{"city": "X"}')
    two = f"{one}\n{one}"
    assert accepts(required_calls(HERMES, rules(), None, is_thinking=False), two)
    single = required_calls(HERMES, rules(is_parallel=False), None, is_thinking=False)
    assert accepts(single, one)
    assert not accepts(single, two)


def test_only_the_named_tool_may_be_called():
    constraint = required_calls(HERMES, rules(names=["send"]), None, is_thinking=False)
    assert not accepts(constraint, call_text('{"city": "X"}'))
    assert accepts(constraint, call_text('{"to": [], "text": ""}', name="send"))


def test_a_tool_without_parameters_is_called_without_arguments():
    tools = [{"type": "function", "function": {"name": "now"}}]
    constraint = required_calls(HERMES, rules(tools), None, is_thinking=False)
    assert accepts(constraint, call_text("{}", name="now"))
    assert not accepts(constraint, call_text('{"a": 1}', name="now"))


def test_thoughts_may_come_before_required_calls():
    thinking = Thinking("<think>\n", "\n</think>\n\n")
    call = call_text('{"city": "X"}')
    free = required_calls(HERMES, rules(), thinking, is_thinking=False)
    assert accepts(free, call)
    assert accepts(free, f"<think>\nHm < > hm.\n</think>\n\n{call}")
    assert not accepts(free, f"Hm {call}")
    opened = required_calls(HERMES, rules(), thinking, is_thinking=True)
    assert (opened.triggers, opened.is_required) == ((b"</think>",), True)


def test_behind_its_trigger_a_call_goes_on():
    constraint = calls_at_a_trigger(HERMES, rules())
    assert constraint is not None
    assert constraint.triggers == (b"<tool_call>",)
    assert accepts(constraint, call_text('{"city": "X"}').removeprefix("<tool_call>"))


def test_calls_without_a_marker_have_no_trigger():
    assert calls_at_a_trigger(MarkedCalls("json", JsonCall()), rules()) is None


def test_special_tokens_stand_by_their_ids():
    known = {"<tool_call>": 7, "</tool_call>": 8}
    found = CallRules(Tools(TOOLS), ("send",), True, known.get)
    text = required_calls(HERMES, found, None, is_thinking=False).text
    assert "<[7]>" in text
    assert "<[8]>" in text
    assert '"<tool_call>' not in text
