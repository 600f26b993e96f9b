"""What a template's operators may make: no time limit ends one long computation in C."""

from __future__ import annotations

import re
from typing import Any

import jinja2

MAX_BITS = 1 << 14  # of a whole number
MAX_REPEATED = 1 << 20  # characters or entries of a sequence that is repeated
_WIDE = re.compile(r"\d{6,}|\*")


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Raise for a product or power that takes the machine's memory or hours.

    Raises:
        jinja2.TemplateError: it would.
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
