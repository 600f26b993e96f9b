"""Functionary v3.2: `>>>recipient` and a line end, then content (for `all`) or arguments.

The prompt ends after the first `>>>`. Source: https://github.com/MeetKai/functionary
"""

from __future__ import annotations

from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.formats import MarkedCalls, NamedCall
from headstart.text.toolcalls.json_text import read_value
from headstart.text.toolcalls.reader import Reading, TextReader

_MARK = ">>>"


def _read(reader: TextReader) -> Reading[None]:
    """Parse part after part, each with a recipient."""
    is_content = reader.start == "content"
    while True:
        if not is_content:
            yield from _read_part(reader)
        found = yield from reader.until((_MARK,), reader.content)
        is_content = False
        if found is None:
            return


def _read_part(reader: TextReader) -> Reading[None]:
    """Parse a recipient, and the arguments if it is a tool."""
    place = reader.mark()
    name = yield from reader.run(lambda char: char.isalnum() or char in "_-.")
    is_named = yield from reader.takes("\n")
    is_call = is_named and name in reader.tools
    if is_call:
        is_call = yield from reader.sees("{")
    reader.release(None if is_call or (is_named and name == "all") else place)
    if is_call:
        reader.begin_call(name)
        if not (yield from read_value(reader, reader.arguments)):
            yield from reader.until((), reader.arguments)
        yield from reader.skip_space()
    elif reader.at == place and place and reader.text[: reader.at].endswith(_MARK):
        reader.content(_MARK)


FORMAT = AnswerFormat(
    calls=MarkedCalls("functionary", NamedCall(name_end="\n"), separator=_MARK), own=_read
)
