"""Whatever the text and wherever its pieces end, the parser gives one message and loses nothing."""

from __future__ import annotations

import json
import sys
from functools import partial
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.templates.conversations import TOOLS, by_name

from headstart.text.quirks import QUIRKS
from headstart.text.thinking import Thinking
from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.events import (
    AnswerMessage,
    CallArguments,
    Content,
    Thoughts,
    ToolCall,
)
from headstart.text.toolcalls.formats import JsonCall, MarkedCalls, NamedCall, TaggedArguments
from headstart.text.toolcalls.reader import AnswerReader

THINK = Thinking("<think>\n", "\n</think>\n\n")
HERMES = MarkedCalls(
    "json", JsonCall(), call_start="<tool_call>\n", call_end="\n</tool_call>", separator="\n"
)
LIST = MarkedCalls("json", JsonCall(id_key="id", is_id_last=True), "[CALLS][", "]", separator=", ")
NAMED = MarkedCalls("named-json", NamedCall("{name}"), call_start="<f=", call_end="</f>")
TAGGED = MarkedCalls(
    "tagged",
    NamedCall("{name}>\n", TaggedArguments("<p=", ">\n", "\n</p>\n")),
    call_start="<call><f=",
    call_end="</f></call>",
    separator="\n",
)
UNMARKED = MarkedCalls("json", JsonCall(arguments_key="parameters"), is_parallel=False)
FORMATS = {
    call_format.name + str(index): AnswerFormat(thinking=THINK, calls=call_format)
    for index, call_format in enumerate((HERMES, LIST, NAMED, TAGGED, UNMARKED))
} | {one.answers.calls.name: one.answers for one in QUIRKS if one.answers and one.answers.calls}
WORDS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "[CALLS][", "]", "<f=", "</f>", "<call>",
    "</call>", "<p=", "</p>", "get_weather", "send", ">", "{", "}", "[", '"', ":", ",", "\\", "\\u",
    '"name"', '"arguments"', "city", "text", "\n", " ", "ü", "1", "'", "(", ")", "=", "<|channel|>",
    "<|message|>", "<|end|>", "<|start|>", "to=functions.", "analysis", "<|tool_call>", "call:",
    '<|"|>', "<tool_call|>", ">>>", "all", "<|tool_call_start|>", "<|tool_call_end|>",
    "]<]minimax[>[", "<invoke name=", "</invoke>", "<city>", "</city>", "<|eom|>",
]  # fmt: skip


def read(answer_format, pieces, start="answer", *, tools=TOOLS, **options):
    """The message of an answer that comes in these pieces."""
    parser = AnswerReader(answer_format.read, by_name(tools), start, **options)
    message = AnswerMessage()
    for piece in pieces:
        message.add(parser.feed(piece))
    message.add(parser.finish())
    return message


def call_text(city="Paris"):
    return (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
    )


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60)
@given(data=st.data())
def test_any_chunking_of_any_text_gives_the_same_message(name, data):
    words = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=3)), max_size=30)
    text = "".join(data.draw(words))
    start = data.draw(st.sampled_from(["answer", "thoughts", "content"]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(FORMATS[name], [text], start).events
    assert read(FORMATS[name], pieces, start).events == whole
    assert read(FORMATS[name], list(text), start).events == whole


@settings(max_examples=200)
@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=3)), max_size=30))
def test_text_without_calls_and_thoughts_is_the_content_as_it_is(words):
    text = "".join(words)
    message = read(AnswerFormat(), list(text))
    assert (message.content, message.thoughts, message.calls) == (text, "", [])


def test_the_name_comes_first_and_the_arguments_in_pieces():
    parser = AnswerReader(AnswerFormat(calls=HERMES).read, by_name())
    text = call_text()
    events = [event for char in text for event in parser.feed(char)]
    assert events[0] == ToolCall(0, "get_weather", "")
    assert len(events) > 10
    assert all(isinstance(event, CallArguments) for event in events[1:])
    assert parser.finish() == []


def test_content_is_not_held_back_longer_than_it_may_be_a_marker():
    parser = AnswerReader(AnswerFormat(calls=HERMES).read, by_name())
    assert parser.feed("a <") == [Content("a ")]
    assert parser.feed("b") == [Content("<b")]
    assert parser.feed("<tool_ca") == []
    assert parser.feed("st>") == [Content("<tool_cast>")]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\n{",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"name" "get_weather"}</tool_call>',
        "<tool_call>get_weather</tool_call>",
        "text <tool_call> and </tool_call>",
        '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>',
        '<tool_call>{"x": 1, "name": "get_weather"}</tool_call>',
    ],
)
def test_what_is_no_call_is_content(text):
    assert read(AnswerFormat(calls=HERMES), [text]).events == [Content(text)]


def test_broken_arguments_are_passed_on_as_they_are():
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": ]}</tool_call> after'
    message = read(AnswerFormat(calls=HERMES), [text])
    assert [call.name for call in message.calls] == ["get_weather"]
    assert message.calls[0].arguments.startswith('{"city": ]')
    cut_off = read(AnswerFormat(calls=HERMES), [call_text()[:-20]])
    assert cut_off.calls == [ToolCall(0, "get_weather", "", '{"city": "P')]


@pytest.mark.parametrize(
    ("members", "arguments"),
    [
        ('"type": "function", "name": "get_weather", "x": 1, "arguments": {}', "{}"),
        ('"name": "get_weather", "parameters": {"city": "Rome"}', '{"city": "Rome"}'),
        (
            '"name": "get_weather", "arguments": "{\\"city\\": \\"R\\\\u00f6\\"}"',
            '{"city": "R\\u00f6"}',
        ),
        ('"function": {"name": "get_weather", "arguments": {}}, "type": "function"', "{}"),
        ('"name": "get_weather"', "{}"),
        ('"name": "get_weather", "arguments": {"a": "}]"}, "x": [1]', '{"a": "}]"}'),
    ],
)
def test_members_that_say_nothing_do_not_matter(members, arguments):
    text = f"<tool_call>{{{members}}}</tool_call>"
    assert read(AnswerFormat(calls=HERMES), list(text)).calls == [
        ToolCall(0, "get_weather", "", arguments)
    ]


def test_an_id_of_the_model_is_the_calls():
    text = (
        '[CALLS][{"name": "send", "arguments": {}, "id": "abc123456"}, {"name": "send", "id": 7}]'
    )
    assert read(AnswerFormat(calls=LIST), list(text)).calls == [
        ToolCall(0, "send", "abc123456", "{}"),
        ToolCall(1, "send", "7", "{}"),
    ]


def test_marked_arguments_become_json_of_the_schemas_types():
    text = (
        '<call><f=get_weather>\n<p=city>\n5 </city>\n"ü"\n</p>\n<p=days>\n3\n</p>\n</f></call>\n'
        '<call><f=send>\n<p=to>\n["a"]\n</p>\n<p=text>\n</p>\n</f></call>'
    )
    for pieces in ([text], list(text)):
        weather, mail = read(AnswerFormat(calls=TAGGED), pieces).calls
        assert json.loads(weather.arguments) == {"city": '5 </city>\n"ü"', "days": 3}
        assert json.loads(mail.arguments) == {"to": ["a"], "text": ""}


@pytest.mark.parametrize("value", ['"\\ud800"', "1e999", "-1e999", "NaN", "Infinity"])
@pytest.mark.parametrize(
    "text",
    [
        "<call><f=send>\n<p=x>\n{}\n</p>\n</f></call>",
        "<|tool_call>call:send{{x:{}}}<tool_call|>",
        "<|tool_call_start|>[send(x={})]<|tool_call_end|>",
        '~<tool_call>\n~<invoke name="send">~<x>{}~</x>~</invoke>\n~</tool_call>'.replace(
            "~", "]<]minimax[>["
        ),
    ],
)
def test_arguments_are_valid_json_whatever_the_value(text, value):
    messages = [read(one, [text.format(value)]) for one in FORMATS.values()]
    [call] = [call for message in messages for call in message.calls]
    parse = partial(json.loads, parse_constant=pytest.fail)
    assert parse(call.arguments.encode()).keys() >= {"x"}


def test_arguments_written_twice_are_one_call():
    call = '{"name": "send", "arguments": {"to": 1}, "parameters": {"to": 2}, "id": null}'
    for text, calls in (("<tool_call>" + call, HERMES), (f"[CALLS][{call}]", LIST)):
        assert read(AnswerFormat(calls=calls), list(text)).calls == [
            ToolCall(0, "send", "", '{"to": 1}')
        ]


def test_the_end_of_a_value_may_occur_in_a_text():
    for text in ("a </p> b", "</p>", "x\n</p\n>", "<![CDATA[x]]>"):
        answer = f"<call><f=send>\n<p=text>\n{text}\n</p>\n<p=to>\n[]\n</p>\n</f></call>"
        expected = {"text": text, "to": []}
        for pieces in ([answer], list(answer)):
            [call] = read(AnswerFormat(calls=TAGGED), pieces).calls
            assert json.loads(call.arguments) == expected
        inside = answer.replace("[]", '["\\\\", "a</p><p=>\\""]').replace("\n</p>", "</p>")
        [call] = read(AnswerFormat(calls=TAGGED), list(inside)).calls
        assert json.loads(call.arguments)["to"] == ["\\", 'a</p><p=>"']
    answer = "<call><f=send><p=text>x</p> <p=to>[]</p>\n</f></call>"
    [call] = read(AnswerFormat(calls=TAGGED), list(answer)).calls
    assert json.loads(call.arguments) == {"text": "x", "to": []}
    unclosed = "<call><f=send>\n<p=text>x</p>\n</call>"  # without </f>
    [first, second] = read(AnswerFormat(calls=TAGGED), list(unclosed + answer)).calls
    assert json.loads(first.arguments) == {"text": "x"}
    assert second.arguments == call.arguments


@pytest.mark.parametrize("note", ["[ ] don't", '["a", "b]', "{'a': 'don't'}", "'a"])
@pytest.mark.parametrize("text", ["it's", "x"])
def test_a_quote_without_end_hides_no_end_of_a_value(note, text):
    call = f"<call><f=send>\n<p=note>\n{note}\n</p>\n<p=text>\n{text}\n</p>\n</f></call>"
    for pieces in ([call + call], list(call + call)):
        first, second = read(AnswerFormat(calls=TAGGED), pieces).calls
        assert json.loads(first.arguments) == {"note": note, "text": text}
        assert second.arguments == first.arguments


def test_a_call_may_have_no_arguments():
    assert read(AnswerFormat(calls=TAGGED), ["<call><f=send></f></call>"]).calls == [
        ToolCall(0, "send", "", "{}")
    ]


def test_calls_without_markers_are_known_by_their_name():
    calls = AnswerFormat(calls=UNMARKED)
    text = '{"name": "get_weather", "parameters": {"city": "X"}}'
    assert read(calls, list(text)).calls == [ToolCall(0, "get_weather", "", '{"city": "X"}')]
    other = 'Use {"name": "x"} or {} here: {"a": 1}'
    assert read(calls, list(other)).events == [Content(other)]


def test_thoughts_that_the_prompt_opened_need_no_marker():
    message = read(AnswerFormat(thinking=THINK), list("Hm.\n</think>\n\nYes."), "thoughts")
    assert message.events == [Thoughts("Hm.\n"), Content("Yes.")]
    unfinished = read(AnswerFormat(thinking=THINK), ["Hm.\n</thi"], "thoughts")
    assert unfinished.events == [Thoughts("Hm.\n</thi")]


def test_a_continued_content_has_no_thoughts():
    message = read(AnswerFormat(thinking=THINK), ["<think>x</think>"], "content")
    assert message.events == [Content("<think>x</think>")]


def test_what_is_not_wanted_stays_in_the_content():
    text = "<think>\nHm.\n</think>\n\n" + call_text()
    answer_format = AnswerFormat(thinking=THINK, calls=HERMES)
    message = read(answer_format, [text], tools=(), splits_thoughts=False)
    assert message.events == [Content(text)]


def test_deep_nesting_raises_nothing():
    deep = '<tool_call>{"function": ' + '{"function": ' * 3000
    assert read(AnswerFormat(calls=HERMES), [deep]).content == deep
    nested = "<call><f=send><p=to>" + "[" * 100_000 + "</p></f></call>"
    assert read(AnswerFormat(calls=TAGGED), [nested]).calls[0].name == "send"


@pytest.mark.parametrize(
    "begun",
    [
        '<tool_call>{"arguments": {',
        '<tool_call>{"name": "get_weather", "arguments": {',
        '[CALLS][{"name": "send", "arguments": {',
        "<call><f=send>\n<p=to>",
        '{"name": "x", "parameters": {',
        "<|tool_call>call:send{a:[{",
        "<|tool_call_start|>[send(a=[(",
        "<|channel|>commentary to=functions.send",
    ],
)
@pytest.mark.parametrize("name", FORMATS)
def test_a_text_that_begins_calls_over_and_over_is_read_in_linear_time(name, begun):
    parser = AnswerReader(FORMATS[name].read, by_name())
    steps = 0

    def count(*_):
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    try:
        parser.feed(begun * 400)
        parser.finish()
    finally:
        sys.setprofile(None)
    assert steps < 400 * 2000


def test_thoughts_are_events_of_their_own():
    parser = AnswerReader(AnswerFormat(thinking=THINK).read, {})
    assert parser.feed("<think>\nA") == [Thoughts("A")]
    assert parser.feed("\n</think>") == [Thoughts("\n")]
    assert parser.feed("\n\nB") == [Content("B")]


@pytest.mark.parametrize("piece", [Content("word "), Thoughts("word "), CallArguments(0, "word ")])
def test_a_long_answer_is_not_copied_with_each_piece(piece):
    def seconds(num_pieces):
        message, started = AnswerMessage(), process_time()
        message.add([ToolCall(0, "write")])
        for _ in range(num_pieces):
            message.add([piece])
        assert len(message.events) == 2
        return process_time() - started

    assert seconds(100_000) < 20 * min(seconds(20_000) for _ in range(3))


@pytest.mark.parametrize(
    "begun",
    [
        '<tool_call>{"name": "send", "arguments": {"text": "',
        '[CALLS][{"name": "send", "id": 1}, {"name": "send", "arguments": {"x": "',
        "<call><f=send>\n<p=text>\n",
        '<|tool_call>call:send{text:<|"|>',
        '<|channel|>commentary to=functions.send<|message|>{"text": "',
        '>>>send\n{"text": "',
        ' to=x<|message|><atem:function_calls>\n<atem:invoke name="send">\n'
        '<atem:parameter name="text">',
    ],
)
def test_what_was_read_of_a_call_is_not_kept(begun):
    """Else it would be copied with each further piece."""
    readers = [AnswerReader(one.read, by_name()) for one in FORMATS.values()]
    ours = [one for one in readers if any(isinstance(e, ToolCall) for e in one.feed(begun))]
    assert ours
    for reader in ours:
        for _ in range(3000):
            reader.feed("word ")
        assert len(reader.text) < 5000


def test_an_id_that_is_cut_behind_its_call_is_no_id():
    text = '[CALLS][{"name": "send", "arguments": {"text": "x"}, "id": "call000'
    (call,) = read(AnswerFormat(calls=LIST), [text]).calls
    assert (call.name, call.arguments, call.call_id) == ("send", '{"text": "x"}', "")


def test_the_key_in_which_a_call_is_cut_is_not_lost():
    text = '<|tool_call>call:send{text:<|"|>x<|"|>,subj'
    (call,) = read(FORMATS["gemma4"], [text]).calls
    assert call.arguments.startswith('{"text":"x","subj"')


@pytest.mark.parametrize("name", ["send", "send mail"])
@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("gemma4", "<|tool_call>call:{name} {{}}<tool_call|>"),
        ("lfm2", "<|tool_call_start|>[{name} ()]<|tool_call_end|>"),
        ("minimax-m3", '~<tool_call>\n~<invoke name="{name} ">~</invoke>\n~</tool_call>'),
        ("json0", '<tool_call> {{"name": "{name}"}} </tool_call>'),
    ],
)
def test_white_space_inside_and_behind_a_name_does_not_matter(family, text, name):
    tools = [{"function": {"name": name}}]
    text = text.format(name=name).replace("~", "]<]minimax[>[")
    (call,) = read(FORMATS[family], list(text), tools=tools).calls
    assert (call.name, call.arguments) == (name, "{}")
