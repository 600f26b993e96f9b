"""gpt-oss: an answer is several messages, whose headers name a channel and a recipient.

`<|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>content`;
a call is a message to `functions.name`, in the role's part of the header or after the channel.

Source: https://developers.openai.com/cookbook/articles/openai-harmony
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.formats import MarkedCalls, NamedCall
from headstart.text.toolcalls.reader import AnswerReader, Reading

_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEADS = ("<|start|>assistant", "<|channel|>")


def _read(reader: AnswerReader) -> Reading[None]:
    """Parse message after message, each with a header."""
    if reader.start != "answer":
        yield from _read_body(reader, "analysis" if reader.start == "thoughts" else "final")
    while (yield from reader.peek(1)):
        if not (yield from reader.sees(*_HEADS, " to=")):
            yield from _read_up_to(reader, _HEADS, reader.content)
            continue
        header = yield from reader.attempt(reader.before("<|message|>"))
        if not header:  # without a message it is text
            return
        yield from _read_body(reader, header)


def _read_up_to(
    reader: AnswerReader, heads: Sequence[str], emit: Callable[[str], object]
) -> Reading[None]:
    """Emit the text up to a head, or to an end, which is skipped."""
    found = yield from reader.up_to((*_ENDS, *heads), emit)
    reader.at += len(found) if found in _ENDS else 0


def _read_body(reader: AnswerReader, header: str) -> Reading[None]:
    match = re.search(r"to=functions\.([\w.-]+)", header)
    if match and match[1] in reader.tools:
        reader.begin_call(match[1])
        sink = reader.arguments
    elif "analysis" in header and reader.splits_thoughts:
        sink = reader.thoughts
    else:
        sink = reader.content
    yield from _read_up_to(reader, _HEADS[:1], sink)


FORMAT = AnswerFormat(
    calls=MarkedCalls(
        "harmony",
        NamedCall("{name} <|constrain|>json<|message|>"),
        call_start="<|channel|>commentary to=functions.",
        call_end="<|call|>",
        is_parallel=False,
    ),
    after_thoughts="<|start|>assistant",
    own=_read,
)
