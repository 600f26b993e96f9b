"""The built-in chat templates for --chat-template, which libllama renders.

A name stands for the plain format of a model family: no tools, no reasoning.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from headstart.engine.library import api

if TYPE_CHECKING:
    from headstart.text.chat_template import RenderPlain


def built_in_templates() -> dict[str, RenderPlain]:
    """Functions that render messages, by template name."""
    count = api.llama_chat_builtin_templates(None, 0)
    names = (ctypes.c_char_p * count)()
    api.llama_chat_builtin_templates(names, count)
    return {name.decode(): partial(_render, name) for name in names if name is not None}


def _render(name: bytes, messages: Sequence[tuple[str, str]], adds_generation_prompt: bool) -> str:
    chat = (api.llama_chat_message * len(messages))()
    for one, message in zip(chat, messages, strict=True):
        # a NUL would end the text
        one.role, one.content = (s.replace("\0", "").encode("utf-8", "replace") for s in message)
    apply = partial(
        api.llama_chat_apply_template, name, chat, len(messages), adds_generation_prompt
    )
    size = apply(None, 0)
    buffer = ctypes.create_string_buffer(size)
    apply(buffer, size)
    return buffer.raw.decode("utf-8", "replace")
