"""A draft model of another vocabulary: same noise, same bytes, nothing read twice, and never a
changed text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.unit.text.vocabulary import real

from headstart.text.vocabulary.draft_tokenizer import Preference, best_of
from headstart.text.vocabulary.translated_sequence import spread
from headstart.text.vocabulary.vocabulary_translator import VocabularyTranslator
from headstart.types import Choose, DraftRequest, TokenChoice

# One draft, token by token, between the embedded vocabularies.


@pytest.fixture(scope="module")
def demo() -> VocabularyTranslator:
    return real.translator("demo-target", "demo-draft-other")


class Speaker:
    """Feeds a draft with rows whose best tokens are given."""

    def __init__(
        self, translator: VocabularyTranslator, history: Sequence[int], max_tokens: int = 8
    ) -> None:
        tokenizer = real.sequence(translator)
        tokenizer.to_draft_tokens(history, 0)
        self.translator, self.history = translator, history
        self.builder: Any = tokenizer.begin(DraftRequest(0, history, max_tokens), 16)

    def say(self, *ranked: int) -> int | None:
        logits = np.zeros(self.translator.draft.size, np.float32)
        for rank, token in enumerate(ranked):
            logits[token] = 20.0 - rank
        return self.builder.extend(logits)

    def write(self, text: bytes) -> list[bytes]:
        """Say a text; the target tokens of the draft."""
        for token in self.translator.draft_encoder.encode(text):
            self.say(token)
        return [self.translator.target.spelling(token) for token in self.builder.finish()[0]]


def tokens_of(translator: VocabularyTranslator, text: bytes) -> list[int]:
    return list(translator.target_encoder.encode(text))


def test_the_last_token_of_a_draft_is_kept_though_more_bytes_could_change_it(demo) -> None:
    speaker = Speaker(demo, tokens_of(demo, b"x = y"))
    assert b"".join(speaker.write(b"\n    retur")) == b"\n    retur"
    assert speaker.builder._sequence.translate(speaker.builder.tokens)[1] > 0


def test_an_end_of_turn_becomes_the_targets_and_ends_the_draft(demo: VocabularyTranslator) -> None:
    speaker = Speaker(demo, tokens_of(demo, b"return x\n"))
    (end,) = [token for token, text in demo.draft.controls.items() if text == b"<|im_end|>"]
    speaker.write(b"```")
    speaker.say(end)
    assert len(speaker.builder.tokens) == speaker.builder.limit
    (token,) = [token for token, text in demo.target.controls.items() if text == b"<|im_end|>"]
    tokens, confidence = speaker.builder.finish()
    assert tokens[-1] == token in demo.target.eog_ids
    assert len(tokens) == len(confidence)


def test_a_healed_boundary_holds_the_draft_to_the_bytes_of_the_history(demo: VocabularyTranslator):
    history = [demo.target.ids[bytes([byte])] for byte in b" retur"]
    speaker = Speaker(demo, history)
    pending = speaker.builder._sequence.pending
    assert pending
    agreeing = next(iter(demo.allowed(pending).tolist()))
    assert speaker.say(demo.draft.ids[b" print"], demo.draft.ids[b" x"], agreeing) == agreeing


def test_text_may_be_drafted_until_the_limit_in_target_tokens(demo: VocabularyTranslator) -> None:
    speaker = Speaker(demo, tokens_of(demo, b"x"), max_tokens=2)
    assert len(speaker.write(b" = y + z + w")) == 2


def _choosing(calls: list[int], pick: int) -> Choose:
    def choose(logits: NDArray[np.float32], position: int) -> TokenChoice:
        calls.append(position)
        return TokenChoice(pick, 0.5, int(logits.argmax()), 0.9)

    return choose


def test_noise_is_that_of_the_position_in_the_targets_text(demo: VocabularyTranslator) -> None:
    text = b" specification"
    ours, theirs = demo.draft_encoder.encode(text), tokens_of(demo, text)
    assert len(ours) != len(theirs)
    calls: list[int] = []
    pick = demo.target.ids[b" x"]
    history = tokens_of(demo, b"the")
    tokenizer = real.sequence(demo)
    tokenizer.to_draft_tokens(history, 0)
    builder: Any = tokenizer.begin(DraftRequest(0, history, 8, choose=_choosing(calls, pick)), 8)
    builder.tokens += ours
    builder.confidence += [1.0] * len(ours)
    logits = np.zeros(demo.draft.size, np.float32)
    logits[demo.draft.ids[b" y"]] = 9.0
    assert builder.extend(logits) == demo.draft.ids[b" x"]
    assert calls == [len(history) + len(theirs)]


# Preference and confidence.


@pytest.mark.parametrize("better", [True, False])
def test_the_way_that_is_accepted_more_is_taken_and_the_choice_can_turn(better: bool) -> None:
    preference = Preference()
    for _ in range(30):
        preference.compare(TokenChoice(1, 0.5, 2, 0.5), 1 if better else 2)
    assert preference.couples is better
    for _ in range(60):
        preference.compare(TokenChoice(1, 0.5, 2, 0.5), 2 if better else 1)
    assert preference.couples is not better


@pytest.mark.parametrize(
    ("probabilities", "drafted", "spelled", "skip", "expected"),
    [
        ([0.5, 0.5, 0.9], [2, 2, 3], [4, 3], 0, [0.25, 0.9]),
        # what one token says whole is certain after its begin
        ([0.5, 0.8], [4, 4], [2, 2, 4], 0, [0.5, 1.0, 0.8]),
        ([0.5, 0.8], [3, 2], [2], 3, [0.4]),  # healed bytes are the history's
        ([0.5, 0.8], [3, 2], [1, 2], 2, [0.5, 0.8]),
        ([0.7, 0.6], [2, 0], [2, 0], 0, [0.7, 0.6]),  # an end of turn has no bytes
        ([], [], [], 0, []),
    ],
)
def test_confidence_is_spread_over_tokens_that_spell_the_same_bytes(
    probabilities: list[float],
    drafted: list[int],
    spelled: list[int],
    skip: int,
    expected: list[float],
) -> None:
    assert spread(probabilities, drafted, spelled, skip) == pytest.approx(expected)


def test_listening_again_after_any_change_gives_the_whole_history_and_says_what_stayed(demo):
    random = np.random.default_rng(5)
    text = tokens_of(
        demo, b"def provider(self, names):\n    return [name.strip() for name in names]\n" * 3
    )
    tokenizer = real.sequence(demo)
    tokens: list[int] = []
    before: list[int] = []
    for _ in range(60):
        known = int(random.integers(0, len(tokens) + 1))
        start = int(random.integers(0, len(text)))
        tokens = [*tokens[:known], *text[start : start + int(random.integers(1, 9))]]
        history = list(tokenizer.to_draft_tokens(tokens, known))
        fresh = real.sequence(demo)
        assert history == list(fresh.to_draft_tokens(tokens, 0))
        assert history[: tokenizer.num_stable] == before[: tokenizer.num_stable]
        before = history


@pytest.mark.parametrize("best", [-1e5, -70.0, 0.0, 40.0, 59.9, 60.1, 1e4])
def test_the_probability_of_the_best_token_is_that_of_a_softmax(best: float) -> None:
    logits = np.random.default_rng(0).normal(-8.0, 2.5, 150_000).astype(np.float32)
    logits -= logits.max()
    logits[[7, 9]] = 0.5, -np.inf  # the best, and one that cannot come
    weights = np.exp(logits.astype(np.float64))
    token, probability = best_of(logits + np.float32(best))
    assert 0.0 < probability <= 1.0
    if abs(best) < 1e3:  # beyond, a float32 has no room for the differences
        assert token == 7
        assert probability == pytest.approx(weights[7] / weights.sum(), rel=1e-4)
