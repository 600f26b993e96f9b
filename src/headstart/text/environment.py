"""The Jinja environment of chat templates: Hugging Face's setup with the leniency of llama.cpp's
engine, in a sandbox because templates are untrusted code.

A template may modify its lists (Kimi-K2's does), so each rendering gets copies.

Sources: https://huggingface.co/docs/transformers/chat_templating_writing and llama.cpp's
common/jinja, whose tolerance templates rely on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment

MAX_BITS = 1 << 14  # of a whole number
MAX_REPEATED = 1 << 20  # characters or entries of a sequence that is repeated
_WIDE = re.compile(r"\d{6,}|\*")


class _Generation(Extension):
    """`{% generation %}` marks text for training; renders its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> Node | list[Node]:
        parser.stream.skip(1)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _ChatEnvironment(SandboxedEnvironment):
    """Allows adding none, undefined values and numbers to strings."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator != "+":
            _check_operands(operator, left, right)
        elif isinstance(left, str) != isinstance(right, str):
            left, right = (_addend(side) for side in (left, right))
        return super().call_binop(context, operator, left, right)


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Raise for operands that would take too much memory or time.

    The time limit cannot interrupt one long computation in C.
    """
    if operator == "%":
        if isinstance(left, str) and _WIDE.search(left):
            raise jinja2.TemplateError("a format is too wide")
        return
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        bits = bits * max(0, right) if operator == "**" else bits + right.bit_length()
        if bits > MAX_BITS:
            raise jinja2.TemplateError(f"a number has more than {MAX_BITS} bits")
        return
    for sequence, times in ((left, right), (right, left)):
        if (
            isinstance(sequence, str | list | tuple)
            and isinstance(times, int)
            and len(sequence) * times > MAX_REPEATED
        ):
            raise jinja2.TemplateError(f"a repeated text is longer than {MAX_REPEATED}")


def _addend(side: Any) -> Any:
    if side is None or isinstance(side, jinja2.Undefined):
        return ""
    return str(side) if isinstance(side, int | float) else side


def chat_environment(now: Callable[[], datetime]) -> SandboxedEnvironment:
    """An environment for chat templates; `now` is their clock."""
    environment = _ChatEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.filters["safe"] = str  # jinja2's Markup escapes what is appended
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Like `json.dumps` rather than Jinja's filter, which escapes HTML; generators become lists."""
    if isinstance(value, list):
        value = list.copy(value)  # dumping a probe's list does not count as reading it
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=list,
    )
