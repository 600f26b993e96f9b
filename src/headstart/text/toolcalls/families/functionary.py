"""Functionary v3.2: `>>>recipient` and a line end, then content (for `all`) or arguments.

The prompt ends after the first `>>>`. Source: https://github.com/MeetKai/functionary
"""

from __future__ import annotations

from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.formats import MarkedCalls, NamedCall
from headstart.text.toolcalls.json_text import read_value
from headstart.text.toolcalls.reader import AnswerReader, Reading

_MARK = ">>>"


def _read(reader: AnswerReader) -> Reading[None]:
    """Parse part after part, each with a recipient."""
    mark: str | None = ""  # before the recipient
    if reader.start == "content":
        mark = yield from reader.until((_MARK,), reader.content)
    while mark is not None:
        name = yield from reader.attempt(_read_recipient(reader))
        if not name:
            reader.content(mark)
        elif name != "all":
            reader.begin_call(name)
            if not (yield from read_value(reader, reader.arguments)):
                yield from reader.until((), reader.arguments)
            yield from reader.skip_space()
        mark = yield from reader.until((_MARK,), reader.content)


def _read_recipient(reader: AnswerReader) -> Reading[str]:
    """A tool before arguments, or `all`; "" if it is neither."""
    name = yield from reader.run(lambda char: char.isalnum() or char in "_-.")
    is_named = yield from reader.takes("\n")
    if is_named and name in reader.tools:
        return name if (yield from reader.sees("{")) else ""
    return name if is_named and name == "all" else ""


FORMAT = AnswerFormat(
    calls=MarkedCalls("functionary", NamedCall("{name}\n"), separator=_MARK), own=_read
)
