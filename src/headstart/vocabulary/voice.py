"""How a draft model hears the history and speaks its draft: in the target's tokens or in its own.

One `Voice` a sequence, one `Growth` a draft. Rows of logits go in, draft-model tokens come out one
by one, and at the end target tokens with a confidence each.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from headstart.structures.prefix import common_prefix_length
from headstart.types import Choice, DraftRequest
from headstart.vocabulary.bridge import VocabularyBridge

_DECAY = 0.98  # of what is remembered of each way to pick, per comparison
_TRY_OTHER = 16  # drafts between two trials of the way that is accepted less


class Preference:
    """Whether to pick coupled or argmax tokens: by order, or by what was accepted so far."""

    def __init__(self, sampling: str) -> None:
        self._fixed = None if sampling == "auto" else sampling == "coupled"
        self._scores = [1.0, 1.0]  # argmax, coupled
        self._weights = [1.0, 1.0]
        self._drafts = 0

    @property
    def couples(self) -> bool:
        if self._fixed is not None:
            return self._fixed
        return self._scores[1] * self._weights[0] >= self._scores[0] * self._weights[1]

    def next_try(self) -> bool:
        """As `couples`, but now and then the other, for pairs where both cannot be compared at once."""
        self._drafts += 1
        other = self._fixed is None and self._drafts % _TRY_OTHER == 0
        return self.couples != other

    def learn(self, coupled: bool, score: float) -> None:
        """A token or a draft picked this way was worth `score`."""
        self._scores[coupled] = self._scores[coupled] * _DECAY + score
        self._weights[coupled] = self._weights[coupled] * _DECAY + 1.0


class Growth(ABC):
    """One draft while it grows, in the draft model's tokens."""

    def __init__(self, request: DraftRequest, limit: int) -> None:
        self.request = request
        self.limit = limit  # most draft-model tokens
        self.tokens: list[int] = []

    @abstractmethod
    def extend(self, logits: NDArray[np.float32], min_confidence: float) -> int | None:
        """Pick the next draft-model token from its logits; None ends the draft."""

    @abstractmethod
    def finish(self) -> tuple[list[int], list[float]]:
        """The draft as target tokens, with a probability for each."""

    @abstractmethod
    def learn(self, emitted: Sequence[int]) -> None:
        """The target emitted these tokens where the draft began."""


class Voice(ABC):
    """One sequence as the draft model knows it."""

    num_stable = 0  # leading history tokens that the last `listen` left as they were
    can_draft = True

    @abstractmethod
    def listen(self, tokens: Sequence[int], known: int) -> Sequence[int]:
        """The history in draft-model tokens, given that its first `known` target tokens are as before."""

    @abstractmethod
    def begin(self, request: DraftRequest, limit: int) -> Growth:
        """Start a draft of at most `limit` draft-model tokens."""

    def num_draft_tokens(self, num_target_tokens: int) -> int:
        """Draft-model tokens that make about so many target tokens."""
        return num_target_tokens


def make_voice(bridge: VocabularyBridge | None, sampling: str) -> Callable[[], Voice]:
    """A factory of voices that share what they learn."""
    preference = Preference(sampling)
    if bridge is None:
        return lambda: DirectVoice(preference)
    return lambda: BridgedVoice(bridge, preference)


class DirectVoice(Voice):
    """Both models have the same tokens."""

    def __init__(self, preference: Preference) -> None:
        self._preference = preference

    def listen(self, tokens: Sequence[int], known: int) -> Sequence[int]:
        self.num_stable = known
        return tokens

    def begin(self, request: DraftRequest, limit: int) -> Growth:
        return DirectGrowth(request, limit, self._preference)


class DirectGrowth(Growth):
    """Keeps both choices of every row, so that one draft tells what either would have earned."""

    def __init__(self, request: DraftRequest, limit: int, preference: Preference) -> None:
        super().__init__(request, limit)
        self._preference = preference
        self._couples = preference.couples
        self._confidence: list[float] = []
        self._choices: list[Choice] = []

    def extend(self, logits: NDArray[np.float32], min_confidence: float) -> int | None:
        if self.request.choose is None:
            token, probability = best_of(logits)
            choice = Choice(token, probability, token, probability)
        else:
            choice = self.request.choose(logits, len(self.request.tokens) + len(self.tokens))
        token, confidence = choice.argmax, choice.argmax_probability
        if self._couples:
            token, confidence = choice.coupled, choice.coupled_probability
        if confidence < min_confidence:
            return None
        self.tokens.append(token)
        self._confidence.append(confidence)
        self._choices.append(choice)
        return token

    def finish(self) -> tuple[list[int], list[float]]:
        return self.tokens, self._confidence

    def learn(self, emitted: Sequence[int]) -> None:
        """Compare both choices of every row that had the right history before it."""
        for token, drafted, choice in zip(emitted, self.tokens, self._choices, strict=False):
            if choice.coupled != choice.argmax:
                self._preference.learn(True, token == choice.coupled)
                self._preference.learn(False, token == choice.argmax)
            if token != drafted:
                break


class BridgedVoice(Voice):
    """The draft model has another vocabulary."""

    def __init__(self, bridge: VocabularyBridge, preference: Preference) -> None:
        self._bridge = bridge
        self._preference = preference
        self._sequence = bridge.open()

    @property
    def can_draft(self) -> bool:  # type: ignore[override]
        return self._sequence.can_draft

    def listen(self, tokens: Sequence[int], known: int) -> Sequence[int]:
        sequence = self._sequence
        had = sequence.target_tokens
        shared = common_prefix_length(had, tokens, min(known, len(had), len(tokens)))
        self.num_stable = len(sequence.draft_history)
        if shared < len(had):
            sequence.truncate(shared)
            self.num_stable = min(self.num_stable, sequence.num_stable)
        if shared < len(tokens):
            sequence.extend(tokens[shared:])
            self.num_stable = min(self.num_stable, sequence.num_stable)
        return sequence.draft_history

    def begin(self, request: DraftRequest, limit: int) -> Growth:
        return BridgedGrowth(request, limit, self)

    def num_draft_tokens(self, num_target_tokens: int) -> int:
        """By the ratio of this text so far, and one more, since the last one is provisional."""
        sequence = self._sequence
        ratio = len(sequence.draft_history) / max(1, len(sequence.target_tokens))
        return math.ceil(num_target_tokens * max(0.5, min(4.0, ratio))) + 1


class BridgedGrowth(Growth):
    """Picks the likeliest draft-model tokens and translates them; or, while tokens map one to one,
    couples them with the noise of the target's token."""

    def __init__(self, request: DraftRequest, limit: int, voice: BridgedVoice) -> None:
        super().__init__(request, limit)
        self._bridge, self._sequence, self._preference = voice._bridge, voice._sequence, voice._preference
        self._pending = self._sequence.pending  # bytes of the history that the draft has to spell again
        self._num_healed = len(self._pending)
        self._probabilities: list[float] = []
        self._exact: list[int] = []  # target tokens of a coupled draft
        self._tries = request.choose is not None and self._preference.next_try()
        self._couples = self._tries and not self._pending

    def extend(self, logits: NDArray[np.float32], min_confidence: float) -> int | None:
        token, probability = self._coupled(logits) if self._couples else (None, 0.0)
        if token is None:
            if self._exact:
                return None  # a coupled draft ends where the vocabularies part
            self._couples = False
            token, probability = self._likeliest(logits)
        if token is None or probability < min_confidence:
            return None
        self.tokens.append(token)
        self._probabilities.append(probability)
        self._pending = self._pending[len(self._bridge.draft.pieces[token]) :]
        return token

    def _likeliest(self, logits: NDArray[np.float32]) -> tuple[int | None, float]:
        """The best token among those that agree with the pending bytes."""
        if not self._pending:
            return best_of(logits)
        allowed = self._bridge.allowed(self._pending)
        if not len(allowed):
            return None, 0.0
        index, probability = best_of(logits[allowed])
        return int(allowed[index]), probability

    def _coupled(self, logits: NDArray[np.float32]) -> tuple[int | None, float]:
        """The token that the target's noise picks among those both vocabularies have."""
        to_target = self._bridge.to_target
        if to_target[int(logits.argmax())] < 0:
            return None, 0.0
        shared = np.flatnonzero(to_target >= 0)
        mapped = np.full(self._bridge.target.size, -np.inf, np.float32)
        mapped[to_target[shared]] = logits[shared]
        assert self.request.choose is not None
        choice = self.request.choose(mapped, len(self.request.tokens) + len(self.tokens))
        token = int(self._bridge.comparison.to_draft[choice.coupled])
        if token < 0:
            return None, 0.0
        self._exact.append(choice.coupled)
        return token, choice.coupled_probability

    def finish(self) -> tuple[list[int], list[float]]:
        length = self.request.max_tokens
        if self._exact:
            tokens = self._exact[: min(length, len(self.tokens))]
            return tokens, self._probabilities[: len(tokens)]
        # Provisional tokens are kept: most are what the target goes on with (acceptance length 3.79, not 3.14).
        tokens = self._sequence.translate(self.tokens)[0][:length]
        drafted = [len(self._bridge.draft.pieces[t]) for t in self.tokens]
        spelled = [len(self._bridge.target.pieces[t]) for t in tokens]
        return tokens, spread(self._probabilities, drafted, spelled, self._num_healed)

    def learn(self, emitted: Sequence[int]) -> None:
        if self.request.choose is None or not self.tokens:
            return
        tokens, _ = self.finish()
        self._preference.learn(bool(self._exact), common_prefix_length(tokens, list(emitted)))


def best_of(logits: NDArray[np.float32]) -> tuple[int, float]:
    """The likeliest entry and its probability."""
    best = int(logits.argmax())
    return best, 1.0 / float(np.exp(logits - logits[best]).sum())


def spread(
    probabilities: Sequence[float], drafted: Sequence[int], spelled: Sequence[int], skip: int = 0
) -> list[float]:
    """Probabilities of target tokens from those of draft tokens that spell the same bytes.

    A target token is as likely as all draft tokens that begin inside it; the first `skip` bytes of
    the draft belong to the history. Control tokens count as one byte.

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
