"""The history and the draft in the draft model's tokens; here they are the target's own.

There is one `DraftTokenizer` per sequence and one `DraftBuilder` per draft. A builder turns rows of
logits into draft-model tokens one by one, and finally into target tokens with a confidence each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.structures.prefix import common_prefix_length
from headstart.types import NO_DRAFT, Draft, DraftRequest, TokenChoice


class Preference:
    """Whether to pick coupled or argmax tokens, by what was accepted so far."""

    def __init__(self) -> None:
        self._lead = 0.0  # of coupled over argmax, in accepted tokens, with decay

    @property
    def couples(self) -> bool:
        return self._lead >= 0

    def compare(self, choice: TokenChoice, token: int) -> None:
        """Record that the target emitted `token` where `choice` was possible."""
        if choice.coupled != choice.argmax:
            self._lead = self._lead * 0.98 + (token == choice.coupled) - (token == choice.argmax)


class DraftBuilder:
    """A growing draft. Records both choices of every row, so that every draft compares them."""

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

    def extend(self, logits: NDArray[np.float32], score: float | None = None) -> int | None:
        """Pick the next draft-model token from its logits; None ends the draft.

        `score` is the probability that it is accepted, if known better than from the logits.
        """
        least = self.request.min_confidence
        is_likely = score is None or score >= least
        token, confidence = self._pick(logits) if is_likely else (None, 0.0)
        if token is None or (score is None and confidence < least):
            self.limit = len(self.tokens)
            return None
        self.tokens.append(token)
        self.confidence.append(confidence if score is None else score)
        self._note(token)
        return token

    def _pick(self, logits: NDArray[np.float32]) -> tuple[int | None, float]:
        """The next token and its probability."""
        choice, legality = self._choose(logits), self.request.legality
        token, _ = self._preferred(choice)
        if legality is not None and (legal := legality.legal_instead(token)) is not None:
            logits = _legal_logits(logits, legal)
            if logits.max() == -np.inf:  # the text is complete, or the matcher failed
                return None, 0.0
            choice = self._choose(logits)
        self._choices.append(choice)
        return self._preferred(choice)

    def _note(self, token: int) -> None:
        """The draft grew by this token."""
        if self.request.legality is not None:
            self.request.legality.read_legal((token,))

    def _choose(self, logits: NDArray[np.float32]) -> TokenChoice:
        """The request's choice from this row."""
        request = self.request
        if request.choose is None:
            token, probability = best_of(logits)
            return TokenChoice(token, probability, token, probability)
        return request.choose(logits, len(request.tokens) + len(self.tokens))

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
    """One sequence in the draft model's tokens."""

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
