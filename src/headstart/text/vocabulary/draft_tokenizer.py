"""The history and the draft in the draft model's tokens, of the same or another vocabulary.

There is one `DraftTokenizer` per sequence and one `DraftBuilder` per draft. A builder turns rows of
logits into draft-model tokens one by one, and finally into target tokens with a confidence each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headstart.structures.prefix import common_prefix_length
from headstart.types import NO_DRAFT, Draft, DraftRequest, TokenChoice

if TYPE_CHECKING:
    from headstart.text.vocabulary.translated_sequence import TranslatedSequence
    from headstart.text.vocabulary.vocabulary_translator import VocabularyTranslator


class Preference:
    """Whether to pick coupled or argmax tokens: fixed, or by what was accepted so far."""

    def __init__(self, sampling: str) -> None:
        self._is_open = sampling == "auto"
        # of coupled over argmax, in accepted tokens, with decay
        self._lead = 0.0 if sampling != "argmax" else -1.0
        self.compares = sampling != "argmax"
        """Whether the coupled choice is needed for the comparison."""

    @property
    def couples(self) -> bool:
        return self._lead >= 0

    def compare(self, choice: TokenChoice, token: int) -> None:
        """Record that the target emitted `token` where `choice` was possible."""
        if self._is_open and choice.coupled != choice.argmax:
            self._lead = self._lead * 0.98 + (token == choice.coupled) - (token == choice.argmax)


class DraftBuilder:
    """A growing draft; here of a draft model with the target's own tokens.

    Records both choices of every row, so that every draft compares them.
    """

    def __init__(self, request: DraftRequest, limit: int, preference: Preference) -> None:
        self.request = request
        self.limit = limit  # most draft-model tokens
        self.reason = ""  # why there is no draft
        self.tokens: list[int] = []  # of the draft model
        self.confidence: list[float] = []  # of each
        self._preference = preference
        self._couples = preference.couples
        self._choices: list[TokenChoice] = []

    @property
    def has_room(self) -> bool:
        """Whether there is a draft, and another token fits."""
        return not self.reason and len(self.tokens) < self.limit

    def extend(self, logits: NDArray[np.float32], min_confidence: float) -> int | None:
        """Pick the next draft-model token from its logits; None ends the draft."""
        choice, legality = self._choose(logits), self.request.legality
        token, _ = self._preferred(choice)
        if legality is not None and (legal := legality.legal_instead(token)) is not None:
            logits = _legal_logits(logits, legal)
            if logits.max() == -np.inf:  # the text is complete, or the matcher failed
                return None
            choice = self._choose(logits)
        token, confidence = self._preferred(choice)
        if confidence < min_confidence:
            return None
        if legality is not None:
            legality.read_legal((token,))
        self.tokens.append(token)
        self.confidence.append(confidence)
        self._choices.append(choice)
        return token

    def _choose(self, logits: NDArray[np.float32]) -> TokenChoice:
        return _choose(self.request, logits, len(self.request.tokens) + len(self.tokens))

    def _preferred(self, choice: TokenChoice) -> tuple[int, float]:
        if self._couples:
            return choice.coupled, choice.coupled_probability
        return choice.argmax, choice.argmax_probability

    def finish(self) -> tuple[list[int], list[float]]:
        """The draft as target tokens, with a probability for each."""
        return self.tokens, self.confidence

    def to_draft(self, unsure: str) -> Draft:
        """The finished draft; `unsure` is the reason if its first token was too unlikely."""
        if self.reason:
            return Draft(reason=self.reason, is_ready=False)
        tokens, confidence = self.finish()
        if not tokens:
            return NO_DRAFT if self.tokens else Draft(reason=unsure)
        return Draft(tokens, confidence)

    def num_right(self, emitted: Sequence[int]) -> int:
        """Upper bound of the draft's tokens that agree with these."""
        return common_prefix_length(self.tokens, emitted)

    def learn(self, emitted: Sequence[int]) -> None:
        """Compare the choices with the emitted tokens, for rows with a correct history."""
        for token, drafted, choice in zip(emitted, self.tokens, self._choices, strict=False):
            self._preference.compare(choice, token)
            if token != drafted:
                break


class DraftTokenizer:
    """One sequence in the draft model's tokens; here they are the target's own."""

    num_stable = 0  # leading history tokens that the last `to_draft_tokens` did not change
    can_draft = True  # whether there is a history to continue

    def __init__(self, preference: Preference) -> None:
        self.preference = preference

    def to_draft_tokens(self, tokens: Sequence[int], known: int) -> Sequence[int]:
        """The history in draft-model tokens; its first `known` target tokens are unchanged."""
        self.num_stable = known
        return tokens

    def to_target_tokens(self, read: Sequence[int]) -> Sequence[int]:
        """The last history in target tokens; `read`: the draft-model tokens in its cache."""
        return read

    def begin(self, request: DraftRequest, limit: int) -> DraftBuilder:
        """Start a draft of at most `limit` draft-model tokens."""
        return DraftBuilder(request, limit, self.preference)

    def num_draft_tokens(self, num_target_tokens: int) -> int:
        """Estimate of the draft-model tokens for this many target tokens."""
        return num_target_tokens

    def num_settled(self, history: Sequence[int], num_open: int) -> int:
        """Leading tokens of the last history that do not depend on its last target tokens."""
        return len(history) - num_open


class TranslatingBuilder(DraftBuilder):
    """Picks draft-model tokens and translates them at the end.

    Tokens are coupled if the draft so far ends with a whole target token and the next one exists in
    both vocabularies: then its position, and so the target's noise, is known. Otherwise the most
    likely token is picked.
    """

    def __init__(self, request: DraftRequest, limit: int, sequence: TranslatedSequence) -> None:
        super().__init__(request, limit, sequence.preference)
        self._translator, self._sequence = sequence.translator, sequence
        # bytes of the history that the draft must repeat
        self._pending = self._sequence.pending
        self._num_healed = len(self._pending)
        self._num_before: list[int] = []  # target tokens before each choice

    def extend(self, logits: NDArray[np.float32], min_confidence: float) -> int | None:
        token, probability = self._pick(logits)
        if token is None or probability < min_confidence:
            return None
        self.tokens.append(token)
        self.confidence.append(probability)
        self._pending = self._pending[len(self._translator.draft.pieces[token]) :]
        if token in self._translator.draft.eog_ids:
            self.limit = len(self.tokens)
        return token

    def _pick(self, logits: NDArray[np.float32]) -> tuple[int | None, float]:
        if self._pending:
            return self._healing(self._pending, logits)
        choice = self._shared_choice(logits)
        if choice is None or not self._couples:
            return best_of(logits)
        return int(self._translator.to_draft[choice.coupled]), choice.coupled_probability

    def _healing(self, pending: bytes, logits: NDArray[np.float32]) -> tuple[int | None, float]:
        """The best token among those that agree with the pending bytes."""
        allowed = self._translator.allowed(pending)
        if not len(allowed):
            return None, 0.0
        index, probability = best_of(logits[allowed])
        return int(allowed[index]), probability

    def _shared_choice(self, logits: NDArray[np.float32]) -> TokenChoice | None:
        """The request's choice from this row, among the shared tokens."""
        translator, choose = self._translator, self.request.choose
        if (
            choose is None
            or not self._preference.compares
            or translator.to_target[int(logits.argmax())] < 0
        ):
            return None
        before = self._sequence.translate(self.tokens)
        if len(translator.target.join(before)) + self._num_healed != len(
            translator.draft.join(self.tokens)
        ):
            # inside a character: the next token may merge with those before
            return None
        choice = choose(translator.map_logits(logits), len(self.request.tokens) + len(before))
        self._choices.append(choice)
        self._num_before.append(len(before))
        return choice

    def finish(self) -> tuple[list[int], list[float]]:
        # Provisional tokens are kept: most are right (acceptance length 3.79 instead of 3.14).
        tokens = self._sequence.translate(self.tokens)[: self.request.max_tokens]
        drafted = [len(self._translator.draft.pieces[t]) for t in self.tokens]
        spelled = [len(self._translator.target.pieces[t]) for t in tokens]
        return tokens, spread(self.confidence, drafted, spelled, self._num_healed)

    def num_right(self, emitted: Sequence[int]) -> int:
        return len(emitted)

    def learn(self, emitted: Sequence[int]) -> None:
        """Compare both choices of every row with a correct history."""
        num_right = common_prefix_length(self.finish()[0], emitted) if self._choices else 0
        for num_before, choice in zip(self._num_before, self._choices, strict=True):
            if num_before <= num_right and num_before < len(emitted):
                self._preference.compare(choice, emitted[num_before])


def make_draft_tokenizer(
    translator: VocabularyTranslator | None, sampling: str
) -> Callable[[], DraftTokenizer]:
    """A factory of tokenizers that share one preference."""
    preference = Preference(sampling)
    if translator is None:
        return lambda: DraftTokenizer(preference)
    return lambda: translator.open(preference)


def _choose(request: DraftRequest, logits: NDArray[np.float32], position: int) -> TokenChoice:
    """The request's choice from this row."""
    if request.choose is None:
        token, probability = best_of(logits)
        return TokenChoice(token, probability, token, probability)
    return request.choose(logits, position)


def _legal_logits(logits: NDArray[np.float32], legal: NDArray[np.bool_]) -> NDArray[np.float32]:
    """A row without illegal tokens; vocabularies may differ in padding."""
    size = min(len(logits), len(legal))
    masked = np.full_like(logits, -np.inf)
    masked[:size] = np.where(legal[:size], logits[:size], -np.inf)
    return masked


def best_of(logits: NDArray[np.float32]) -> tuple[int, float]:
    """The likeliest entry and its probability."""
    best = int(logits.argmax())
    # up to this magnitude exp needs no shift: the sum fits a float32, what underflows is negligible
    if not abs(logits[best]) <= 60.0:
        logits = logits - logits[best]
    weights = np.exp(logits)
    total = np.einsum("i->", weights)  # three times as fast as the more accurate `sum`
    return best, float(weights[best] / total)


def spread(
    probabilities: Sequence[float], drafted: Sequence[int], spelled: Sequence[int], skip: int = 0
) -> list[float]:
    """Probabilities of target tokens from those of draft tokens that spell the same bytes.

    A target token gets the product of the draft tokens that begin inside it; the first `skip` bytes
    of the draft belong to the history. Control tokens count as one byte.

    >>> spread([0.5, 0.5, 0.9], [2, 2, 3], [4, 3])
    [0.25, 0.9]
    """
    begins = [max(0, b - skip) for b in accumulate((max(1, n) for n in drafted), initial=0)][:-1]
    ends = list(accumulate(max(1, n) for n in spelled))
    result, at = [], 0
    for end in ends:
        likely = 1.0
        while at < len(begins) and begins[at] < end:
            likely *= probabilities[at]
            at += 1
        result.append(likely)
    return result
