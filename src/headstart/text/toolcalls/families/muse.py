"""Muse Glimmer: messages to a recipient, ` to=self<|message|>thoughts<|eom|>`; calls are XML.

Source: its chat template in llama.cpp's models/templates.
"""

from __future__ import annotations

from headstart.text.toolcalls.answer_format import AnswerFormat, read_calls
from headstart.text.toolcalls.formats import MarkedCalls, NamedCall, TaggedArguments
from headstart.text.toolcalls.reader import AnswerReader, Reading

_ENDS = ("<|eom|>", "<|eot|>")
_START = "<|start|>assistant"
_CALLS = MarkedCalls(
    "muse",
    NamedCall('{name}">\n', TaggedArguments('<atem:parameter name="', '">', "</atem:parameter>\n")),
    section_start="<atem:function_calls>\n",
    section_end="</atem:function_calls>",
    call_start='<atem:invoke name="',
    call_end="</atem:invoke>\n",
    header=" to={name}<|message|>",
    next_message="<|eom|>" + _START,
    is_parallel=False,  # each is a separate message
)


def _read(reader: AnswerReader) -> Reading[None]:
    """Parse message after message, each to a recipient."""
    recipient = {"thoughts": "self", "content": "user"}.get(reader.start)
    while True:
        if recipient is None:
            recipient = yield from reader.attempt(_read_recipient(reader))
        is_thought = recipient == "self" and reader.splits_thoughts
        if (yield from _read_body(reader, is_thought=is_thought)):
            return
        recipient = None


def _read_recipient(reader: AnswerReader) -> Reading[str]:
    """The recipient of the next message; "" without a header."""
    yield from reader.takes(_START)
    if not (yield from reader.takes(" to=")):
        return ""
    name = yield from reader.run(lambda char: char not in "<\n ")
    return name if (yield from reader.takes("<|message|>")) else ""


def _read_body(reader: AnswerReader, *, is_thought: bool) -> Reading[bool]:
    """Parse up to the end of a message; returns whether the text ends there."""
    sink = reader.thoughts if is_thought else reader.content
    triggers = (_CALLS.trigger,) if reader.tools and not is_thought else ()
    while True:
        found = yield from reader.until((*_ENDS, *triggers), sink)
        if found is None:
            return True
        if found in _ENDS:
            return not (yield from reader.peek(1))
        yield from read_calls(_CALLS, reader, found)


FORMAT = AnswerFormat(
    calls=_CALLS,
    after_thoughts=_START,
    own=_read,
)
