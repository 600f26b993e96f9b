"""Token recycling chains what the model expected."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tests.unit.speculators.text_support import propose, tokens_of

from headstart.speculators.recycling import RecyclingSpeculator
from headstart.types import Decoded


def logits_of(*likely: int, vocab_size: int = 20) -> NDArray[np.float32]:
    row = np.zeros(vocab_size, np.float32)
    for rank, token in enumerate(likely):
        row[token] = 12 - 3 * rank
    return row


def decoded(seq_id: int, rows: dict[int, NDArray[np.float32]]) -> Decoded:
    size = len(rows)
    return Decoded(
        np.full(size, seq_id, np.int32),
        np.arange(size, dtype=np.int32),
        np.array(list(rows), np.int32),
        np.stack(list(rows.values())),
    )


def test_it_chains_what_the_model_expected() -> None:
    speculator = RecyclingSpeculator(RecyclingSpeculator.Options(min_share=0.0))
    speculator.begin(0, [1])
    assert propose(speculator, [1]).reason == "no likely successor"
    speculator.observe(decoded(0, {1: logits_of(2), 2: logits_of(3), 3: logits_of(1)}))
    assert tokens_of(speculator, [1], 5) == [2, 3, 1, 2, 3]


def test_repeated_rows_make_it_more_confident() -> None:
    speculator = RecyclingSpeculator()
    speculator.begin(0, [1])
    scores = []
    for _ in range(3):
        speculator.observe(decoded(0, {1: logits_of(2)}))
        scores.append(propose(speculator, [1], 1).confidence[0])
    assert scores == sorted(scores)
    assert scores[0] < scores[2] <= 1


def test_the_newest_row_outweighs_the_older_ones() -> None:
    speculator = RecyclingSpeculator()
    speculator.begin(0, [1])
    for successor in (2, 2, 5):
        speculator.observe(decoded(0, {1: logits_of(successor, 9)}))
    assert tokens_of(speculator, [1], 1) == [5]


def test_namespaces_do_not_see_each_other() -> None:
    speculator = RecyclingSpeculator()
    speculator.begin(0, [1], "alice")
    speculator.observe(decoded(0, {1: logits_of(2)}))
    speculator.begin(1, [1], "bob")
    assert tokens_of(speculator, [1], seq_id=1) == []
    speculator.end(0)
    speculator.begin(0, [1], "alice")
    assert tokens_of(speculator, [1], 1) == [2]
