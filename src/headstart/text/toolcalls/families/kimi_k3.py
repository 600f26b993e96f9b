"""Kimi K3: everything is inside tags, `<|open|>response<|sep|>text<|close|>response<|sep|>`.

Source: its chat template in llama.cpp's models/templates.
"""

from __future__ import annotations

from headstart.text.toolcalls.answer_format import AnswerFormat
from headstart.text.toolcalls.formats import MarkedCalls, NamedCall, TaggedArguments

FORMAT = AnswerFormat(
    calls=MarkedCalls(
        "kimi-k3",
        NamedCall(
            '{name}" index="{number}"<|sep|>',
            TaggedArguments(
                key_start='<|open|>argument key="',
                key_end='" type="',
                value_end="<|close|>argument<|sep|>",
                attribute_end='"<|sep|>',
                text_attribute="string",
            ),
        ),
        section_start="<|open|>tools<|sep|>",
        section_end="<|close|>tools<|sep|>",
        call_start='<|open|>call tool="',
        call_end="<|close|>call<|sep|>",
    ),
    content_start="<|open|>response<|sep|>",
    content_end="<|close|>response<|sep|>",
    dropped=("<|close|>message<|sep|>", "<|end_of_msg|>"),
)
