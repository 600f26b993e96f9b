"""gpt-oss: an answer is several messages, whose headers name a channel and a recipient.

`<|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>content`;
a call is a message to `functions.name`, in the role's part of the header or after the channel.

Source: https://developers.openai.com/cookbook/articles/openai-harmony
"""

from __future__ import annotations

import re

from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.formats import MarkedCalls, NamedCall
from headstart.text.toolcalls.reader import Reading, TextReader

_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEADS = ("<|start|>assistant", "<|channel|>")


def _read(reader: TextReader) -> Reading[None]:
    """Parse message after message, each with a header."""
    if reader.start != "answer":
        header = "analysis" if reader.start == "thoughts" else "final"
        yield from _read_body(reader, header)
    while (yield from reader.peek(1)):
        if not (yield from _is_header(reader)):
            found = yield from reader.until((*_ENDS, *_HEADS), reader.content)
            reader.at -= len(found) if found in _HEADS else 0
            continue
        place = reader.mark()
        header_text: list[str] = []
        found = yield from reader.until(("<|message|>",), header_text.append)
        reader.release(place if found is None else None)
        if found is None:  # a header without a message is text
            yield from reader.until((), reader.content)
            return
        yield from _read_body(reader, "".join(header_text))


def _is_header(reader: TextReader) -> Reading[bool]:
    for head in (*_HEADS, " to="):
        if (yield from reader.sees(head)):
            return True
    return False


def _read_body(reader: TextReader, header: str) -> Reading[None]:
    match = re.search(r"to=functions\.([\w.-]+)", header)
    if match and match[1] in reader.tools:
        reader.begin_call(match[1])
        sink = reader.arguments
    elif "analysis" in header and reader.splits_thoughts:
        sink = reader.thoughts
    else:
        sink = reader.content
    found = yield from reader.until((*_ENDS, _HEADS[0]), sink)
    reader.at -= len(found) if found == _HEADS[0] else 0


FORMAT = AnswerFormat(
    calls=MarkedCalls(
        "harmony",
        NamedCall(name_end=" <|constrain|>json<|message|>"),
        call_start="<|channel|>commentary to=functions.",
        call_end="<|call|>",
        is_parallel=False,
    ),
    after_thoughts="<|start|>assistant",
    seen_markers=("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"),
    own=_read,
)
