"""Takes tokens out of the middle of a sequence, so that what stands behind them moves forward.

A context shift makes room for a text that is longer than the context. Cache reuse takes pieces of a
kept prompt for a new one in which they stand further in front. In both cases the cells that moved
were computed behind other tokens than those that now stand before them: an approximation, which
only requests get that ask for it (`Cells.num_exact`). Where a cache cannot be moved, what is left
of a text is read again.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from headstart.scheduler.sequence import ALL_EXACT, Cells, Sequence
from headstart.structures.prefix import common_prefix_length
from headstart.types import Engine, Vocab

MOST_CHUNKS = 32  # of a prompt: libllama goes through all cells for each, while the engine waits


class Chunk(NamedTuple):
    """Tokens that a cache holds and that a prompt has further in front."""

    start: int  # in the cache
    target: int  # in the prompt
    length: int


def shift_context(sequence: Sequence, engine: Engine, vocab: Vocab) -> bool:
    """Drop tokens behind those that the request keeps; False if there are none to drop.

    All but the last token of the text are in the cache. The numbers are llama-server's.
    """
    request, text, cells = sequence.request, sequence.text, sequence.cells
    assert cells is not None
    if request.media:  # a shift would cut one, or move what stands behind it
        return False
    num_keep = request.num_keep if request.num_keep >= 0 else len(request.prompt)
    num_keep = min(num_keep + vocab.add_bos, engine.context_size - 4)  # what is always moved
    num_left = cells.length - num_keep
    num_discard = min(request.num_discard or num_left // 2, num_left - 1)
    if num_discard <= 0:
        return False
    cells.length = _cut(cells, engine, num_keep, num_discard)
    if cells.num_exact >= cells.length:
        cells.num_exact = ALL_EXACT
    text.tokens.drop(num_keep, num_keep + num_discard)
    text.num_dropped += num_discard
    text.sampler.num_dropped += num_discard
    return True


def _cut(cells: Cells, engine: Engine, start: int, num_tokens: int) -> int:
    """Take tokens out of the cache; returns how many are left. Others are read again."""
    if not engine.can_shift:
        return engine.rewind(cells.seq_id, start)
    if not engine.shift(cells.seq_id, start, start + num_tokens):  # no room to do it in
        return 0
    cells.num_exact = min(cells.num_exact, start)
    return cells.length - num_tokens


def find_chunks(
    cached: list[int], tokens: list[int], num_shared: int, least: int
) -> tuple[Chunk, ...]:
    """Pieces of at least `least` tokens behind the shared beginning, in the order of both texts.

    Each is the first in the cache that goes on with the prompt where the one before ended; at most
    MOST_CHUNKS. O(len(cached) + len(tokens)): texts of one character a token are searched, at C
    speed, because the engine waits.
    """
    held, wanted = _characters(cached), _characters(tokens)
    chunks: list[Chunk] = []
    start = target = num_shared
    end = len(tokens) - 1  # the last token is always decoded again
    while end - target >= least and len(chunks) < MOST_CHUNKS:
        start = held.find(wanted[target : target + least], start)
        if start < 0:
            break
        length = common_prefix_length(held[start:], wanted[target:end])
        if cached[start : start + length] != tokens[target : target + length]:
            break  # another id has the same character
        chunks.append(Chunk(start, target, length))
        start, target = start + length, target + length
    return tuple(chunks)


def _characters(tokens: list[int]) -> str:
    ids = np.asarray(tokens, np.int64) % (sys.maxunicode + 1)
    return ids.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def move_chunks(seq_id: int, chunks: tuple[Chunk, ...], engine: Engine) -> bool:
    """Move the pieces to where the prompt has them; False (and the sequence is empty) if not."""
    num_dropped = 0
    for chunk in chunks:
        start = chunk.start - num_dropped
        if not engine.shift(seq_id, chunk.target, start):
            return False
        num_dropped += start - chunk.target
    return True
