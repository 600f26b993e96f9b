"""Removes tokens from the middle of a sequence and moves the rest forward to close the gap.

A context shift makes room for a text that is longer than the context. Cache reuse takes chunks of a
cached prompt for a new one in which they come earlier. In both cases the moved cells were computed
after other tokens than those that now precede them: an approximation, used only for requests that
ask for it (`Cells.num_exact`). If a cache cannot be shifted, the rest of the text is decoded again.
"""

from __future__ import annotations

import sys
from difflib import Match

import numpy as np

from headstart.scheduler.sequence import Cells, Sequence
from headstart.structures.prefix import common_prefix_length
from headstart.types import Engine, Vocab
from headstart.types.constraint import NO_LIMIT

MOST_CHUNKS = 32  # of a prompt: libllama scans all cells for each, while the engine waits


def shift_context(sequence: Sequence, engine: Engine, vocab: Vocab) -> bool:
    """Drop tokens after those that the request keeps; False if there are none to drop.

    All but the last token of the text are in the cache. How many are dropped is as in llama-server.
    """
    request, cells = sequence.request, sequence.cells
    assert cells is not None
    if request.media:  # a shift would cut an image, or move the tokens after it
        return False
    num_keep = request.num_keep if request.num_keep >= 0 else len(request.prompt)
    num_keep = min(num_keep + vocab.add_bos, engine.context_size - 4)  # can always be shifted
    num_left = cells.length - num_keep
    num_discard = min(request.num_discard or num_left // 2, num_left - 1)
    if num_discard <= 0:
        return False
    cells.length = _cut(cells, engine, num_keep, num_discard)
    if cells.num_exact >= cells.length and not engine.has_prompt_widths:
        cells.num_exact = NO_LIMIT
    sequence.tokens.drop(num_keep, num_keep + num_discard)
    sequence.num_dropped += num_discard
    sequence.num_as_prompt = len(sequence.tokens)
    sequence.sampler.num_dropped += num_discard
    return True


def _cut(cells: Cells, engine: Engine, start: int, num_tokens: int) -> int:
    """Remove tokens from the cache; returns how many are left. The rest is decoded again."""
    if not engine.can_shift:
        length = engine.reusable(cells.seq_id, min(start, cells.num_exact))
        return engine.rewind(cells.seq_id, length)
    if not engine.shift(cells.seq_id, start, start + num_tokens):  # no memory to shift in
        return 0
    cells.num_exact = min(cells.num_exact, start)
    return cells.length - num_tokens


def find_chunks(
    cached: list[int], tokens: list[int], num_shared: int, least: int
) -> tuple[Match, ...]:
    """Chunks of at least `least` tokens after the shared prefix, in the order of both texts: place
    in the cache, place in the prompt, and length.

    Each chunk is the first in the cache that matches the prompt where the previous chunk ended; at
    most MOST_CHUNKS. O(len(cached) + len(tokens)): strings of one character per token are searched
    at C speed, because the engine waits.
    """
    held, wanted = _characters(cached), _characters(tokens)
    chunks: list[Match] = []
    start = target = num_shared
    end = len(tokens) - 1  # the last token is always decoded again
    while end - target >= least and len(chunks) < MOST_CHUNKS:
        start = held.find(wanted[target : target + least], start)
        if start < 0:
            break
        length = common_prefix_length(held[start:], wanted[target:end])
        if cached[start : start + length] != tokens[target : target + length]:
            break  # different ids with the same character
        chunks.append(Match(start, target, length))
        start, target = start + length, target + length
    return tuple(chunks)


def _characters(tokens: list[int]) -> str:
    ids = np.asarray(tokens, np.int64) % (sys.maxunicode + 1)
    return ids.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def move_chunks(seq_id: int, chunks: tuple[Match, ...], engine: Engine) -> bool:
    """Move the chunks to their positions in the prompt; on failure False and an empty sequence."""
    num_dropped = 0
    for chunk in chunks:
        start = chunk.a - num_dropped
        if not engine.shift(seq_id, chunk.b, start):
            return False
        num_dropped += start - chunk.b
    return True
