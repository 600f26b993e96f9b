"""Prompts that are decoded in a cache of their own have the logits of the shared one, whatever is
done with them; those of recurrent models, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.architectures import tiny_hybrid, tiny_recurrent
from tests.models import tiny_llama
from tests.real.support import decode
from tests.real.test_prompt_reader import CONFIG, NUM, engine_of, lengths

from headstart.engine import prompt_reader
from headstart.engine.context import LlamaEngine
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.types import Batch, CacheKind


class Texts:
    """Sequences of an engine, each with the tokens that it holds."""

    sizes, longest, num_acts = (30, 140), 350, 120

    def __init__(self, path: Path, seed: int, *, is_apart: bool) -> None:
        self.engine = self.engine_of(path, is_apart=is_apart)
        self.random = np.random.default_rng(seed)
        self.of: dict[int, list[int]] = {seq_id: [] for seq_id in range(NUM)}
        self.batch, self.logits = Batch(512), list[NDArray[np.float32]]()

    @staticmethod
    def engine_of(path: Path, *, is_apart: bool) -> LlamaEngine:
        return engine_of(path, is_apart=is_apart)

    def tokens(self, num: int) -> list[int]:
        return self.random.integers(5, 250, num).tolist()

    def decode(self, rows: dict[int, list[int]], *, is_prompt: bool) -> None:
        self.batch.clear()
        for seq_id, tokens in rows.items():
            self.batch.add(seq_id, len(self.of[seq_id]), tokens, 1 if is_prompt else len(tokens))
            self.of[seq_id] += tokens
        self.logits.append(self.engine.decode(self.batch).copy())

    def act(self) -> None:
        """Anything that a scheduler does with a sequence."""
        random, of = self.random, self.of
        seq_id, other = random.permutation(NUM)[:2].tolist()
        text, kind = of[seq_id], int(random.integers(0, 12))
        if len(text) > self.longest:
            self.engine.clear(seq_id)
            text.clear()
        if kind < 4:
            ids = random.permutation(NUM)[: int(random.integers(1, 3))].tolist()
            rows = {one: self.tokens(int(random.integers(*self.sizes))) for one in ids}
            self.decode(rows, is_prompt=True)
        elif kind < 7:
            rows = {one: self.tokens(int(random.integers(1, 5))) for one in of if of[one]}
            if rows:
                self.answer(rows)
        elif kind == 7 and text:
            data = self.engine.save_sequence(seq_id)
            self.engine.clear(seq_id)
            assert self.engine.restore_sequence(other, data) == len(text)
            of[seq_id], of[other] = [], text
        else:
            self.act_on(seq_id, other, kind)

    def answer(self, rows: dict[int, list[int]]) -> None:
        """Drafts, of which some are rejected."""
        self.decode(rows, is_prompt=False)
        for one in rows:
            self.cut(one, len(self.of[one]) - int(self.random.integers(0, len(rows[one]))))

    def act_on(self, seq_id: int, other: int, kind: int) -> None:
        """What only caches that can be cut anywhere allow."""
        random, engine, text = self.random, self.engine, self.of[seq_id]
        if kind == 8:
            self.cut(seq_id, int(random.integers(0, len(text) + 1)))
        elif kind == 9 and text:
            length = int(random.integers(1, len(text) + 1))
            assert engine.copy_prefix(seq_id, other, length)
            self.of[other] = text[:length]
        elif kind == 10 and len(text) > 20:
            assert engine.shift(seq_id, 5, 15)
            del text[5:15]
        elif len(text) > 30:
            block, rest = engine.save_block(seq_id, 20, len(text)), text[20:]
            self.cut(seq_id, 20)
            assert engine.restore_block(seq_id, block)
            text += rest

    def cut(self, seq_id: int, length: int) -> None:
        assert self.engine.truncate(seq_id, length)
        del self.of[seq_id][length:]


class RecurrentTexts(Texts):
    """Texts that are cut back to checkpoints only."""

    # 128 rows or more are read apart behind a state that is cached
    sizes, longest, num_acts = (20, 160), 150, 100

    @staticmethod
    def engine_of(path: Path, *, is_apart: bool) -> LlamaEngine:
        engine = LlamaEngine(Model(path, CONFIG), CONFIG, Limits(NUM, 64, 0))
        assert engine.cache_kind is CacheKind.CHECKPOINT
        assert engine.reader is not None
        if is_apart:
            engine.reader.unpack(Model(path, CONFIG))
        else:
            engine.reader = None
        return engine

    def decode(self, rows: dict[int, list[int]], *, is_prompt: bool) -> None:
        for one in rows if is_prompt else ():  # as if all of them moved
            self.engine.checkpoints.drop_brief(one)
        super().decode(rows, is_prompt=is_prompt)

    def answer(self, rows: dict[int, list[int]]) -> None:
        lengths = {one: len(self.of[one]) for one in rows}
        drafted = [one for one in rows if self.engine.keep_for_draft(one)]
        self.decode(rows, is_prompt=False)
        for one in drafted:
            if self.random.random() < 0.5:
                self.rewind(one, lengths[one])
                assert len(self.of[one]) == lengths[one]

    def act_on(self, seq_id: int, other: int, kind: int) -> None:
        random, engine, text = self.random, self.engine, self.of[seq_id]
        if kind == 8:
            self.rewind(seq_id, int(random.integers(0, len(text) + 1)))
        elif kind == 9 and text:
            length = engine.reusable(seq_id, int(random.integers(1, len(text) + 1)), by_copy=True)
            is_copied = engine.copy_prefix(seq_id, other, length)
            assert is_copied or not length
            self.of[other] = text[:length]
        elif kind > 9:
            engine.checkpoint(seq_id)

    def rewind(self, seq_id: int, length: int) -> None:
        del self.of[seq_id][self.engine.rewind(seq_id, length) :]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("write", [tiny_llama, tiny_hybrid, tiny_recurrent])
def test_whatever_is_done_with_a_prompt_it_has_the_logits_that_it_has_in_the_shared_cache(
    write: Callable[[Path], Path], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_reader, "LEAST_OTHERS", 32)
    kind = Texts if write is tiny_llama else RecurrentTexts
    path = write(tmp_path / "tiny.gguf")
    apart, shared = (kind(path, seed, is_apart=is_apart) for is_apart in (True, False))
    num_apart = 0
    for _ in range(kind.num_acts):
        apart.act()
        shared.act()
        num_apart += bool(lengths(apart.engine))
        assert apart.of == shared.of
    assert num_apart > 10
    assert len(apart.logits) == len(shared.logits) > 40
    # how rows lie in tiles changes logits by 0.03, another text before them by 3
    for own, other in zip(apart.logits, shared.logits, strict=True):
        np.testing.assert_allclose(own, other, atol=0.15)


@pytest.mark.parametrize("write", [tiny_hybrid, tiny_recurrent])
def test_an_answer_with_a_draft_stays_where_the_state_before_it_is(write, tmp_path: Path) -> None:
    """However many rows it has, those decoded again among them."""
    engine = RecurrentTexts.engine_of(write(tmp_path / "tiny.gguf"), is_apart=True)
    text = [5 + i % 200 for i in range(260)]
    decode(engine, text[:100], 0)
    decode(engine, text[100:101], 100)
    assert engine.keep_for_draft(0)
    for accepted in (60, 130):
        decode(engine, [*text[101 : 102 + accepted], 7, 8], 101, 3)
        assert engine.rewind(0, 101 + accepted) == 101
        assert engine.reader is not None
        assert 0 not in engine.reader.lengths
