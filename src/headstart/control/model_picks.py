"""What a draft model would have picked at each place of a text, where it is known, and where not.

A model picks a token for a place from the text before it, whatever was drafted before. So one fact
for each place says all: whether that token is the text's. A run alone with any fixed length follows
from these facts (`counterfactual`). A model that reads the text tells all of them. Of one that only
drafted they are known as far as its drafts were right, and one further; and it drafted where that
was likely to pay, so the other places are worse than these.

What is missing is filled in several times, each time drawn from a chain of two states: a right pick
mostly follows a right one. Its chances are counted where two adjacent places are known; the places
known before and behind a gap decide with them. Where the model stopped because it was unsure, it is
as unsure as its limit says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random

DRAWS = 4  # times that a text with gaps is filled in
STOPPED = 0.65  # chance that the token is right at which a model stopped, in its limits
# chance of a right pick behind a wrong one and behind a right one, before any was seen, each as
# many labels
PRIORS, PRIOR_LABELS = (0.45, 0.75), 2.0

Known = Sequence[bool | None]
"""Whether the model picked the text's token, by place; None: not known."""


def fill(known: Known, stopped: Mapping[int, float]) -> list[list[bool]]:
    """The text without gaps: once if it has none, else drawn some times.

    stopped: places at which the model stopped, with its limit. O(places).
    """
    if all(pick is not None for pick in known):
        return [[bool(pick) for pick in known]]
    chances = chances_of(known)
    return [_draw(known, stopped, chances, Random(draw)) for draw in range(DRAWS)]


def chances_of(known: Known) -> tuple[float, float]:
    """That a pick is right behind a wrong one, and behind a right one."""
    labels, right = [PRIOR_LABELS, PRIOR_LABELS], [PRIOR_LABELS * p for p in PRIORS]
    for before, after in pairwise(known):
        if before is not None and after is not None:
            labels[before] += 1.0
            right[before] += after
    return right[0] / labels[0], right[1] / labels[1]


def _draw(
    known: Known, stopped: Mapping[int, float], chances: tuple[float, float], random: Random
) -> list[bool]:
    """From the last place to the first: what comes behind each place, if it is wrong or right; then
    forward, one draw a gap's place.
    """
    behind = [(1.0, 1.0)] * (len(known) + 1)
    for at in range(len(known) - 1, -1, -1):
        weights = [0.0, 0.0]
        for before in (0, 1):
            chance = _chance(at, before, stopped, chances)
            wrong, right = (1.0 - chance) * behind[at + 1][0], chance * behind[at + 1][1]
            weights[before] = {None: wrong + right, False: wrong, True: right}[known[at]]
        most = max(weights) or 1.0
        behind[at] = weights[0] / most, weights[1] / most
    drawn: list[bool] = []
    for at, pick in enumerate(known):
        if pick is None:
            chance = _chance(at, drawn[-1] if drawn else 0, stopped, chances)
            wrong, right = (1.0 - chance) * behind[at + 1][0], chance * behind[at + 1][1]
            pick = random.random() * (wrong + right) < right
        drawn.append(pick)
    return drawn


def _chance(
    at: int, before: int, stopped: Mapping[int, float], chances: tuple[float, float]
) -> float:
    limit = stopped.get(at)
    return STOPPED * limit if limit is not None else chances[before]
