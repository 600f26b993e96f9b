"""gpt-oss: an answer is several messages, whose headers name a channel and a recipient.

`<|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>content`;
a call is a message to `functions.name`, in the role's part of the header or behind the channel.

Source: https://developers.openai.com/cookbook/articles/openai-harmony
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headstart.text.toolcalls.answer_format import AnswerFormat, ReadOptions
from headstart.text.toolcalls.formats import JsonArguments, MarkedCalls, NamedCall
from headstart.text.toolcalls.reader import Reading, TextReader

_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_HEADS = ("<|start|>assistant", "<|channel|>", " to=")
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmonyFormat(AnswerFormat):
    """Messages with headers."""

    def read(self, reader: TextReader, options: ReadOptions) -> Reading[None]:
        """Read message after message."""
        if options.start == "thoughts":
            yield from self._read_body(reader, "analysis", options)
        elif options.start == "content":
            yield from self._read_body(reader, "final", options)
        while reader.at < len(reader.text) or not reader.is_over:
            if not (yield from self._is_header(reader)):
                yield from reader.until((*_ENDS, "<|channel|>"), reader.content)
                yield from self._go_back_to_header(reader)
                if not (yield from reader.peek(1)):
                    return
                continue
            place = reader.mark()
            header: list[str] = []
            found = yield from reader.until(("<|message|>",), header.append)
            reader.release(place if found is None else None)
            if found is None:  # a header without a message is text
                yield from reader.until((), reader.content)
                return
            yield from self._read_body(reader, "".join(header), options)

    def _is_header(self, reader: TextReader) -> Reading[bool]:
        for head in _HEADS:
            if (yield from reader.sees(head)):
                return True
        return False

    def _go_back_to_header(self, reader: TextReader) -> Reading[None]:
        """Go back to a marker that begins a header."""
        for head in ("<|start|>", "<|channel|>"):
            at = reader.at - len(head)
            if at >= 0 and reader.text.startswith(head, at):
                yield from reader.peek(0)
                whole = _HEADS[0] if head == "<|start|>" else head
                reader.at = at
                if not (yield from reader.sees(whole)):
                    reader.content(head)
                    reader.at = at + len(head)
                return

    def _read_body(self, reader: TextReader, header: str, options: ReadOptions) -> Reading[None]:
        match = _RECIPIENT.search(header)
        if match and match[1] in reader.tools and options.reads_calls:
            reader.begin_call(match[1])
            sink = reader.arguments
        elif "analysis" in header and options.splits_thoughts:
            sink = reader.thoughts
        else:
            sink = reader.content
        found = yield from reader.until(_ENDS, sink)
        if found == "<|start|>":
            reader.at -= len(found)
            if not (yield from reader.sees(_HEADS[0])):
                reader.content(found)
                reader.at += len(found)


FORMAT = HarmonyFormat(
    calls=MarkedCalls(
        "harmony",
        NamedCall(JsonArguments(), name_end=" <|constrain|>json<|message|>"),
        call_start="<|channel|>commentary to=functions.",
        call_end="<|call|>",
        is_parallel=False,
    ),
    after_thoughts="<|start|>assistant",
    seen_markers=("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"),
)
