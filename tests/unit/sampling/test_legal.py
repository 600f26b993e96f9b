"""The rule among legal tokens: the unconstrained choice where it is legal, else the same rule
before the filters with the same noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.planted import noted
from tests.unit.sampling.grammar.test_state import EOS, TOKENS, PairVocab, constraint
from tests.unit.sampling.test_rule import LOGITS, NUM_DRAWS, SIZE, sampler, softmax, total_variation

from headstart.sampling.grammar.compiled import Compiled
from headstart.sampling.grammar.triggers import FreeText, GrammarTokens
from headstart.sampling.noise import gumbel
from headstart.sampling.sampler import Sampler, only
from headstart.sampling.verify import emit
from headstart.testing import FakeEngine
from headstart.types.constraint import ThoughtMarks
from headstart.types.errors import RequestError
from headstart.types.sampling_params import SamplingParams


class Legal:
    """A `Legality` with the same tokens at every place; counts how often it was asked for all."""

    def __init__(self, ids: Sequence[int], forced: Sequence[int] = ()) -> None:
        self.is_over = False
        self.ids = sorted(ids)
        self.num_masks = 0
        self.text: list[int] = []
        self._forced = list(forced)

    def allows(self, token: int) -> bool:
        return token in self.ids

    def legal_mask(self) -> NDArray[np.bool_]:
        self.num_masks += 1
        return np.isin(np.arange(SIZE), self._forced[:1] or self.ids)

    def forced(self) -> Sequence[int]:
        return self._forced

    def read(self, token: int) -> None:
        self.text.append(token)
        self._forced = self._forced[1:]


def choose(one: Sampler, legal: Legal, *arguments: Any) -> list[int]:
    one.legality = legal
    return emit(one, *arguments)


def draw(one: Sampler, legal: Legal, count: int = NUM_DRAWS // 2) -> list[int]:
    rows = LOGITS[None, :]
    return [choose(one, legal, rows, (), t, ())[0] for t in range(count)]


@pytest.mark.parametrize("ids", [(0, 3, 5), (1,), (2, 4, 6, 7), tuple(range(SIZE))])
def test_without_filters_tokens_have_the_restricted_distribution(ids: tuple[int, ...]) -> None:
    p = np.zeros(SIZE)
    p[list(ids)] = softmax(LOGITS[list(ids)])
    assert total_variation(draw(sampler(seed=5), Legal(ids)), p) < 0.025


@pytest.mark.parametrize("ids", [(0, 3, 5), (2, 4, 6, 7)])
def test_the_token_is_the_argmax_of_log_p_and_noise_over_the_legal_tokens(ids) -> None:
    chosen = np.array(ids, np.int32)
    for seed in range(20):
        legal = Legal(ids)
        for t, token in enumerate(draw(sampler(seed=seed), legal, 50)):
            assert token == chosen[(LOGITS[chosen] + gumbel(seed, t, chosen)).argmax()]


def test_no_mask_is_computed_where_the_unconstrained_choice_is_legal() -> None:
    legal = Legal([int(i) for i in np.argsort(-LOGITS)[:5]])
    tokens = draw(sampler(seed=3), legal, 500)
    free = [sampler(seed=3).sample(LOGITS, t) for t in range(500)]
    assert legal.num_masks == sum(token not in legal.ids for token in free)
    assert 0 < legal.num_masks < 250
    assert all(a == b for a, b in zip(tokens, free, strict=True) if b in legal.ids)


@pytest.mark.parametrize("top_k", [1, 2, 3, 4])
def test_with_top_k_the_mask_comes_before_the_filter(top_k: int) -> None:
    """The law of the rule, worked out: A legal and kept, B illegal and kept, C kept only once the
    illegal ones are gone. A token of A wins outright, or among A and C where B won; one of C only
    where both B and it beat A.
    """
    order = np.argsort(-LOGITS)
    ids = sorted(int(i) for i in order[[1, 3, 4, 6]])
    kept = {int(i) for i in order[:top_k]}
    among_legal = {int(i) for i in [i for i in order if i in ids][:top_k]}
    a, b, c = kept & set(ids), kept - set(ids), among_legal - kept
    weights = np.exp(LOGITS.astype(np.float64))
    wa, wb, wc = (float(weights[list(group)].sum()) for group in (a, b, c))
    all_of_c = 1.0 - wa / (wa + wc) - wa / (wa + wb) + wa / (wa + wb + wc) if a else 1.0
    p = np.zeros(SIZE)
    p[list(c)] = all_of_c * weights[list(c)] / (wc or 1.0)
    p[list(a)] = (1.0 - all_of_c) * weights[list(a)] / (wa or 1.0)
    assert p.sum() == pytest.approx(1.0)
    assert total_variation(draw(sampler(seed=8, top_k=top_k), Legal(ids)), p) < 0.025


def test_forced_tokens_are_emitted_without_sampling() -> None:
    class Untouched(Sampler):
        def sample(self, *_: Any) -> int:
            raise AssertionError

    one = Untouched(SamplingParams(), FakeEngine(SIZE), (0,))
    rows = np.tile(LOGITS, (3, 1))
    legal = Legal([4], forced=[4, 2, 6])
    assert choose(one, legal, rows, [4, 2], 0, ()) == [4, 2, 6]
    assert legal.text == [4, 2, 6]


def test_a_bias_and_a_penalty_count_among_the_legal_tokens() -> None:
    order = [int(i) for i in np.argsort(-LOGITS)]
    ids = order[1:5]
    biased = sampler(temperature=0.0, logit_bias={ids[3]: 50.0, order[7]: 99.0})
    assert draw(biased, Legal(ids), 1) == [ids[3]]


def test_where_all_legal_tokens_are_banned_the_request_fails() -> None:
    banned = sampler(temperature=0.0, logit_bias={3: -np.inf, 5: -np.inf})
    with pytest.raises(RequestError, match="constraint ban all"):
        draw(banned, Legal([3, 5]), 1)


def test_a_forced_token_has_a_probability_of_1_though_it_is_banned() -> None:
    ids, probabilities = sampler(logit_bias={3: -np.inf}).probabilities(LOGITS, 0, only(3, SIZE))
    assert (ids.tolist(), probabilities.tolist()) == ([3], [1.0])


def test_drafts_do_not_change_a_constrained_text() -> None:
    rows = np.random.default_rng(1).normal(0.0, 1.5, (6, SIZE)).astype(np.float32)
    ids = [1, 2, 5, 6]
    for temperature in (0.0, 0.8, 1.5):
        one = sampler(seed=4, temperature=temperature, top_k=3)
        alone = [choose(one, Legal(ids), rows[i:], [], 10 + i, ())[0] for i in range(6)]
        assert choose(one, Legal(ids), rows, alone[:5], 10, ()) == alone
        wrong = [*alone[:2], (alone[2] + 1) % SIZE, 0, 0]
        assert choose(one, Legal(ids), rows, wrong, 10, ()) == alone[:3]


def test_nothing_is_emitted_behind_the_end_of_the_text() -> None:
    class OneMore(Legal):
        def read(self, token: int) -> None:
            super().read(token)
            self.is_over = len(self.text) == 2

    rows = np.tile(LOGITS, (4, 1))
    best = int(LOGITS.argmax())
    one = sampler(temperature=0.0)
    assert choose(one, OneMore(range(SIZE)), rows, [best] * 3, 0, ()) == [best] * 2


def test_the_note_says_among_which_ids_a_token_was_chosen() -> None:
    notes: list[tuple[int, int, Any]] = []
    order = [int(i) for i in np.argsort(-LOGITS)]
    one, rows = sampler(temperature=0.0), LOGITS[None, :]
    choose(one, Legal(order), rows, (), 0, (), lambda *note: notes.append(note))
    choose(one, Legal(order[3:]), rows, (), 0, (), lambda *note: notes.append(note))
    assert notes[0] == (0, order[0], None)
    assert notes[1][:2] == (0, order[3])
    ids, probabilities = sampler().probabilities(LOGITS, 0, notes[1][2])
    assert ids.tolist() == order[3:]
    assert probabilities == pytest.approx(softmax(LOGITS[order[3:]]))


@pytest.mark.parametrize("share", [0.0005, 0.02, 0.5, 0.99])
@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 40},
        {"top_k": 0},
        {"top_k": 40, "logit_bias": {3: 9.0, 700: -np.inf, 20_000: 4.0}},
        {"top_k": 12, "repeat_penalty": 1.3, "repeat_last_n": 8},
        {"temperature": 0.0},
    ],
)
def test_short_cuts_for_few_and_for_many_legal_tokens_choose_alike(share, params) -> None:
    """In a large vocabulary; against the same with all other logits at minus infinity."""
    size = 30_000
    random = np.random.default_rng(int(share * 1e4))
    for position in range(12):
        logits = random.normal(0.0, 2.0, size).astype(np.float32)
        legal = random.random(size) < share
        legal[3] = True
        one = sampler(size, seed=position, **params)
        one.read([3, 17, 20_000])
        masked = np.where(legal, logits, np.float32(-np.inf))
        assert one.sample(logits, position, legal) == one.sample(masked, position)


def test_thoughts_begin_only_if_the_model_itself_chooses_their_marker() -> None:
    """Else a model that writes anything else would be made to think."""
    marks = ThoughtMarks(b"<a>", b"</a>", is_open=False, opening=tuple(b"<a>"))
    made = Compiled(constraint("regex", "[0-9]+", thoughts=marks), TOKENS)
    sampler = Sampler(SamplingParams(temperature=0.0), FakeEngine(TOKENS.size), (EOS,))
    for ranked, chosen in ((b"\n<7", b"7"), (b"<\n7", b"<")):
        logits = np.zeros((1, TOKENS.size), np.float32)
        logits[0, list(ranked)] = 9.0, 8.0, 7.0
        sampler.legality = made.begin()
        assert emit(sampler, logits, [], 0, ()) == list(chosen)


class WideVocab(PairVocab):
    """A thousand tokens go on behind a `>`."""

    extra = tuple(b">%d" % number for number in range(1000))
    size = 258 + len(extra) + 1


def test_before_a_trigger_only_tokens_that_are_likely_are_looked_at(monkeypatch) -> None:
    """Not all that have the trigger in them, which may be most of the vocabulary."""
    grammar = constraint("regex", "[a-z]+", triggers=(b">",))
    made = Compiled(grammar, GrammarTokens.read(WideVocab()))
    looks = noted(monkeypatch, FreeText, "follow")
    sampler = Sampler(SamplingParams(temperature=0.0), FakeEngine(WideVocab.size), (EOS,))
    logits = np.zeros((1, WideVocab.size), np.float32)
    logits[0, 258:261] = 9.0
    logits[0, ord("b")] = 1.0
    sampler.legality = made.begin()
    assert emit(sampler, logits, [], 0, ()) == [ord("b")]
    assert len(looks) < 10
    logits[0, 258:-1] = 9.0
    with pytest.raises(RequestError, match="cannot be followed further"):
        emit(sampler, logits, [], 1, ())
    assert len(looks) < 20
