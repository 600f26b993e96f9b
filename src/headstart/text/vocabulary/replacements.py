"""Rewrites markers of one chat template into those of another (`--spec-replace`).

Markers are control tokens with text around them: `<start_of_turn>user\\n`. To distinguish tokens
from text with the same spelling, token streams are encoded as strings of symbols: a character below
256 is a byte, one from `TARGET_BASE` on is a control token of the target, one from `DRAFT_BASE` on
a control token of the draft.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from headstart.text.vocabulary.table import VocabTable
from headstart.types.errors import ConfigError

TARGET_BASE = 0x10000
DRAFT_BASE = 0x88000  # room for 491520 control token ids each; Unicode ends at 0x110000

Pair = tuple[str, str]
"""(markers of the target, markers of the draft), as they are spelled in the templates."""


def parse_pairs(text: str | None) -> list[Pair]:
    """Pairs from lines of `TARGET => DRAFT`; `\\n` and `\\t` mean a line end and a tab.

    Raises:
        ConfigError: a line has no arrow.
    """
    pairs = []
    for line in (text or "").splitlines():
        old, arrow, new = line.replace("\\n", "\n").replace("\\t", "\t").partition(" => ")
        if not arrow:
            raise ConfigError(f"--spec-replace needs 'TARGET => DRAFT', got {line!r}")
        pairs.append((old, new))
    return pairs


class Replacements:
    """Replacement pairs compiled for a target and a draft vocabulary."""

    def __init__(self, pairs: Iterable[Pair], target: VocabTable, draft: VocabTable) -> None:
        """Compile the pairs; of two with the same left side the first counts.

        Raises:
            ConfigError: the left side of a pair is empty.
        """
        # spelling to spelling of single control tokens, for translation back
        self.single_tokens: dict[bytes, bytes] = {}
        self._replaced: dict[str, str] = {}
        for old, new in pairs:
            if not old:
                raise ConfigError(
                    f"--spec-replace needs text of the target to replace, got '' for {new!r}"
                )
            source, result = (
                symbols_of(old, target, TARGET_BASE),
                symbols_of(new, draft, DRAFT_BASE),
            )
            self._replaced.setdefault(source, result)
            if len(source) == len(result) == 1 and min(source, result) >= chr(TARGET_BASE):
                self.single_tokens.setdefault(old.encode(), new.encode())
        longest_first = sorted(self._replaced, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)", re.DOTALL)
        self._prefixes = {
            source[:end] for source in self._replaced for end in range(1, len(source))
        }
        self._max_held = max(map(len, self._prefixes), default=0)

    def __len__(self) -> int:
        return len(self._replaced)

    def apply(self, symbols: str) -> tuple[str, str]:
        """(rewritten symbols, symbols held back because they may begin a marker)"""
        if not self._replaced:
            return symbols, ""
        size = len(symbols)
        longest = min(size, self._max_held)
        holds = [size - n for n in range(longest, 0, -1) if symbols[size - n :] in self._prefixes]
        parts: list[str] = []
        end = 0
        for match in self._pattern.finditer(symbols):
            if any(end <= hold <= match.start() for hold in holds):
                break
            parts += [symbols[end : match.start()], self._replaced[match.group()]]
            end = match.end()
        hold = next((hold for hold in holds if hold >= end), size)
        return "".join([*parts, symbols[end:hold]]), symbols[hold:]


def symbols_of(text: str, table: VocabTable, base: int) -> str:
    """A template's text as symbols, with control tokens recognised by spelling."""
    spellings = {spelling: token for token, spelling in table.controls.items() if spelling}
    longest_first = sorted(spellings, key=len, reverse=True)
    pattern = b"|".join(map(re.escape, longest_first)) or b"(?!)"
    parts = re.split(b"(" + pattern + b")", text.encode())
    return "".join(
        chr(base + spellings[part]) if index % 2 else part.decode("latin-1")
        for index, part in enumerate(parts)
    )


def symbols_of_tokens(tokens: Sequence[int], table: VocabTable, base: int) -> str:
    """Tokens as symbols, without those that are neither text nor control tokens."""
    controls, pieces, size = table.controls, table.pieces, table.size
    return "".join(
        [
            chr(base + token) if token in controls else pieces[token].decode("latin-1")
            for token in tokens
            if token < size
        ]
    )
