"""Predicts a draft model's next drafts from those it made.

A draft stops at the first score below a limit. For each of several limits it is described by two
probabilities at its first token and two at each later one:

    going on = drafts that passed the limit here / drafts that came so far
    kept     = survival of those that passed     / survival of those that came so far

Products of the first, over the previous tokens, give the drafted tokens, which cost rounds and
rows. Products of the second give the accepted ones. They are weighted by the probability that the
draft is still correct, because that correlates with the next score: copied text stays predictable.
Counts fade, and are shrunk: a request's towards those of all requests, these towards the mean
acceptance. A draft that stopped at a limit says nothing about lower limits, and is not counted for
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from headstart.control.values import FADE, FAST, WEIGHT

Array = NDArray[np.float64]

LIMITS = np.array((0.0, 0.3, 0.5, 0.7, 0.85))
REQUEST_FADE = 0.9  # of a request's counts, per step
# probabilities by limit and kind, the second relative to acceptance: without further data, a higher
# limit is assumed to drop worse tokens first
_PRIOR = np.stack((1.0 - 0.5 * LIMITS, 1.0 - 0.3 * LIMITS**2), axis=1)[:, None, :]


class Profile:
    """Counts over drafts, by limit, place (first token or later ones), and kind (drafts or
    survival).
    """

    SAVED: ClassVar = ("_came", "_passed")

    def __init__(self) -> None:
        self._came, self._passed = [0.0] * (4 * len(LIMITS)), [0.0] * (4 * len(LIMITS))

    def fade(self, factor: float) -> None:
        """Reduce the weight of the counts."""
        self._came = [factor * count for count in self._came]
        self._passed = [factor * count for count in self._passed]

    def learn(
        self,
        confidence: Sequence[float],
        survival: Sequence[float],
        max_tokens: int,
        min_confidence: float = 0.0,
    ) -> None:
        """Count one draft; if it is shorter than `max_tokens`, its next score was below the limit
        `min_confidence`.
        """
        came, passed = self._came, self._passed
        for cell, limit in zip(range(0, len(came), 4), LIMITS.tolist(), strict=True):
            if limit < min_confidence:
                continue
            at, before = cell, 1.0
            for score, right in zip(confidence, survival, strict=True):
                came[at] += 1.0
                came[at + 1] += before
                if score < limit:
                    break
                passed[at] += 1.0
                passed[at + 1] += right
                at, before = cell + 2, right
            else:
                if len(confidence) < max_tokens:
                    came[at] += 1.0
                    came[at + 1] += before

    def probabilities(self, prior: Array) -> Array:
        """Probabilities of going on and of being kept, by limit and place, shrunk towards
        `prior`.
        """
        came, passed = np.array((self._came, self._passed)).reshape(2, -1, 2, 2)
        shrunk: Array = (passed + WEIGHT * prior) / (came + WEIGHT)
        return shrunk


class DraftHistory:
    """Profiles of a model's drafts, over all requests and for each running one."""

    SAVED: ClassVar = ("_profile", "share")

    def __init__(self) -> None:
        self._profile = Profile()
        # share of an answer's tokens that come from steps with its drafts: these have to pay for
        # catching up
        self.share = 0.5
        # by number of the request: the profile of its drafts, and the tokens of those steps
        self.requests: dict[int, Profile] = {}
        self._tokens: dict[int, float] = {}

    def learn(
        self,
        number: int,
        confidence: Sequence[float],
        survival: Sequence[float],
        max_tokens: int,
        min_confidence: float = 0.0,
    ) -> None:
        """Count one draft, both for the model and for the request; as `Profile.learn`."""
        request = self.requests.setdefault(number, Profile())
        for profile, factor in ((self._profile, FADE), (request, REQUEST_FADE)):
            profile.fade(factor)
            profile.learn(confidence, survival, max_tokens, min_confidence)
        self._tokens[number] = self._tokens.get(number, 0.0) + 1.0 + sum(survival)

    def skip(self, number: int) -> None:
        """No draft for this request: fade its own counts, so that the average weighs more."""
        if (request := self.requests.get(number)) is not None:
            request.fade(REQUEST_FADE)

    def end(self, number: int, num_answered: int) -> None:
        """Forget a request that ended with an answer of `num_answered` tokens."""
        share = min(1.0, self._tokens.pop(number, 0.0) / max(1, num_answered))
        if share:
            self.share += FAST * (share - self.share)
        else:  # recovers slowly, after several answers
            self.share += 0.1 * FAST * max(0.0, 0.5 - self.share)
        self.requests.pop(number, None)

    def probabilities(self, numbers: Sequence[int], acceptance: float) -> Array:
        """Probabilities by request, limit, place and kind; `acceptance` is that of an average
        token.
        """
        everyone = self._profile.probabilities(_PRIOR * (1.0, acceptance))
        profiles = map(self.requests.get, numbers)
        return np.array([everyone if p is None else p.probabilities(everyone) for p in profiles])


def forecast(probabilities: Array, lengths: NDArray[np.int64]) -> tuple[Array, Array, Array]:
    """Expected values for drafts of up to `lengths` tokens, by request, limit and length: accepted
    tokens, drafted tokens, and rounds of the model (one per token, and one for a token below the
    limit).

    Args:
        probabilities: as `DraftHistory.probabilities`.
        lengths: by request and length.
    """
    below_one = np.minimum(probabilities, 1.0 - 1e-9)[..., None]
    first, later = below_one[:, :, 0], below_one[:, :, 1]
    # geometric series
    sums = first * (1.0 - later ** lengths[:, None, None, :]) / (1.0 - later)
    before = (sums - first)[:, :, 0] / np.maximum(later[:, :, 0], 1e-9)  # without the last token
    return sums[:, :, 1], sums[:, :, 0], 1.0 + before
