"""Prompts of recurrent models without snapshots that are decoded in a cache of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.architectures import tiny_hybrid, tiny_recurrent
from tests.real.support import decode
from tests.real.test_prompt_reader import CONFIG, NUM, Texts

from headstart.engine.context import LlamaEngine
from headstart.engine.model import Model
from headstart.engine.parameters import Limits
from headstart.types import CacheKind


@pytest.fixture(scope="module", params=[tiny_hybrid, tiny_recurrent])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = request.param(tmp_path_factory.mktemp("models") / "tiny.gguf")
    return made


class RecurrentTexts(Texts):
    """Texts that are cut back to checkpoints only."""

    def __init__(self, path: Path, seed: int, *, is_apart: bool) -> None:
        engine = LlamaEngine(Model(path, CONFIG), CONFIG, Limits(NUM, 64, 0))
        assert engine.cache_kind is CacheKind.CHECKPOINT
        assert engine.reader is not None
        if is_apart:
            engine.reader.unpack(Model(path, CONFIG))
        else:
            engine.reader = None
        super().__init__(engine, seed)

    def act(self) -> None:
        """Anything that a scheduler does with a sequence."""
        random, engine, of = self.random, self.engine, self.of
        seq_id, other = random.permutation(NUM)[:2].tolist()
        text, kind = of[seq_id], int(random.integers(0, 11))
        if len(text) > 350:
            engine.clear(seq_id)
            text.clear()
        if kind < 4:
            ids = random.permutation(NUM)[: int(random.integers(1, 3))].tolist()
            rows = {one: self.tokens(int(random.integers(20, 180))) for one in ids}
            for one in ids:  # as if all of them moved
                engine.checkpoints.drop_brief(one)
            self.decode(rows, is_prompt=True)
        elif kind < 7:
            rows = {one: self.tokens(int(random.integers(1, 5))) for one in of if of[one]}
            if rows:
                lengths = {one: len(of[one]) for one in rows}
                drafted = [one for one in rows if engine.keep_for_draft(one)]
                self.decode(rows, is_prompt=False)
                for one in drafted:
                    if random.random() < 0.5:
                        self.rewind(one, lengths[one])
                        assert len(of[one]) == lengths[one]
        elif kind == 7:
            engine.checkpoint(seq_id)
        elif kind == 8:
            self.rewind(seq_id, int(random.integers(0, len(text) + 1)))
        elif kind == 9 and text:
            length = engine.reusable(seq_id, int(random.integers(1, len(text) + 1)), by_copy=True)
            is_copied = engine.copy_prefix(seq_id, other, length)
            assert is_copied or not length
            of[other] = text[:length]
        elif text:
            data = engine.save_sequence(seq_id)
            engine.clear(seq_id)
            assert engine.restore_sequence(other, data) == len(text)
            of[seq_id], of[other] = [], text

    def rewind(self, seq_id: int, length: int) -> None:
        del self.of[seq_id][self.engine.rewind(seq_id, length) :]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_done_with_a_prompt_it_has_the_logits_that_it_has_in_the_shared_cache(
    seed: int, path: Path
) -> None:
    apart, shared = (RecurrentTexts(path, seed, is_apart=is_apart) for is_apart in (True, False))
    num_apart = 0
    for _ in range(150):
        apart.act()
        shared.act()
        assert apart.engine.reader is not None
        num_apart += bool(apart.engine.reader.lengths)
        assert apart.of == shared.of
    assert num_apart > 10
    assert len(apart.logits) == len(shared.logits) > 40
    for own, other in zip(apart.logits, shared.logits, strict=True):
        np.testing.assert_allclose(own, other, atol=0.15)


def test_an_answer_with_a_draft_stays_where_the_state_before_it_is(path: Path) -> None:
    """However many rows it has, those decoded again among them."""
    engine = RecurrentTexts(path, 0, is_apart=True).engine
    text = [5 + i % 200 for i in range(260)]
    decode(engine, text[:100], 0)
    decode(engine, text[100:101], 100)
    assert engine.keep_for_draft(0)
    for accepted in (60, 130):
        decode(engine, [*text[101 : 102 + accepted], 7, 8], 101, 3)
        assert engine.rewind(0, 101 + accepted) == 101
        assert engine.reader is not None
        assert 0 not in engine.reader.lengths
