"""What each speculator alone would have given on a text that has been written, in tokens and
milliseconds, from the guesses that it made while others, or nobody, drafted.

A guess that was made at one place of the text says how far it would have been accepted there, and
by that also at the places that it got right: the rest of it. So most places are known, and a run
with a fixed length can be walked through: at each place it verifies the guess, up to its length,
pays for so many rows, and goes on behind the first wrong token. Places of which nothing is known
are left out, as if they were like the others.

A model is asked only where it pays, and stops where it is unsure. Where it stopped before the
length that is looked at and was right until then, it is taken to go on as it did on average.

Hindsight takes at each place the number of tokens that makes the whole text cheapest, and only
tokens that are right: the shortest path through the text. Places of which nothing is known cost as
much as a token does with the best fixed length.

The error is that of a ratio: a text is cut into blocks, and what their tokens and milliseconds vary
by is what another text of the kind would vary by. That of the prices is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
HINDSIGHT = "hindsight"
BLOCK = 24  # steps: longer than most passages that go well or badly as a whole
STOPPED = 0.65  # chance that the token is right at which a model stopped, in its limits
PRIOR_RIGHT, PRIOR_LABELS = 0.7, 4.0  # a model's tokens, before it was seen: as many labels


class Guess(NamedTuple):
    """A draft at one place of a text."""

    at: int  # tokens before it
    length: int
    num_right: int
    limit: float = 0.0  # a model's: it stopped at the first token less likely than that


@dataclass(frozen=True, slots=True)
class SpeculatorPrices:
    """Milliseconds of one request alone on this machine."""

    step: Sequence[float]  # by rows
    round: float = 0.0  # of a draft token of a model
    reading: float = 0.0  # of the prompt, before a model drafts
    is_model: bool = False


@dataclass(slots=True)
class SpeedSums:
    """Tokens and milliseconds, and what their error follows from; adds up over texts."""

    tokens: float = 0.0
    milliseconds: float = 0.0
    num_blocks: int = 0
    tokens_squared: float = 0.0
    product: float = 0.0
    milliseconds_squared: float = 0.0

    def add(self, tokens: float, milliseconds: float) -> None:
        """One block of a text."""
        self.tokens += tokens
        self.milliseconds += milliseconds
        self.num_blocks += 1
        self.tokens_squared += tokens * tokens
        self.product += tokens * milliseconds
        self.milliseconds_squared += milliseconds * milliseconds

    def __iadd__(self, other: SpeedSums) -> SpeedSums:
        for name in SpeedSums.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return 1000.0 * self.tokens / self.milliseconds if self.milliseconds else 0.0

    @property
    def error(self) -> float | None:
        """Standard error of the speed; None: too little was seen."""
        n = self.num_blocks
        if n < 2 or not self.milliseconds:
            return None
        ratio = self.tokens / self.milliseconds
        spread = (
            self.tokens_squared
            - 2.0 * ratio * self.product
            + ratio * ratio * self.milliseconds_squared
        )
        return 1000.0 * sqrt(max(0.0, spread) * n / (n - 1)) / self.milliseconds


@dataclass(slots=True)
class Counterfactual:
    """Speeds of one text, or of many."""

    num_tokens: int = 0
    off: SpeedSums = field(default_factory=SpeedSums)
    hindsight: SpeedSums = field(default_factory=SpeedSums)  # with the guesses of all speculators
    # of each speculator alone: by its fixed length, and in hindsight
    by_speculator: dict[str, dict[str, SpeedSums]] = field(default_factory=dict)
    num_guesses: dict[str, int] = field(default_factory=dict)
    num_seen: dict[str, int] = field(default_factory=dict)  # places of which a guess is known

    def __iadd__(self, other: Counterfactual) -> Counterfactual:
        self.num_tokens += other.num_tokens
        self.off += other.off
        self.hindsight += other.hindsight
        for name, speeds in other.by_speculator.items():
            own = self.by_speculator.setdefault(name, {})
            for length, sums in speeds.items():
                own.setdefault(length, SpeedSums()).__iadd__(sums)
            self.num_guesses[name] = self.num_guesses.get(name, 0) + other.num_guesses[name]
            self.num_seen[name] = self.num_seen.get(name, 0) + other.num_seen[name]
        return self

    def describe(self) -> dict[str, Any]:
        """JSON-ready: tokens per second with their error, and the speedup over no drafts."""
        return {
            "num_tokens": self.num_tokens,
            "off": self._describe(self.off),
            "hindsight": self._describe(self.hindsight),
            "speculators": {
                name: {
                    "num_guesses": self.num_guesses[name],
                    "share_seen": round(self.num_seen[name] / self.num_tokens, 4),
                    "best_length": int(best_length(speeds)),
                    **self._describe(speeds[best_length(speeds)]),
                    "hindsight": self._describe(speeds[HINDSIGHT]),
                    "by_length": {
                        length: self._describe(sums)
                        for length, sums in speeds.items()
                        if length != HINDSIGHT
                    },
                }
                for name, speeds in self.by_speculator.items()
            },
        }

    def _describe(self, sums: SpeedSums) -> dict[str, float | None]:
        off = self.off.speed
        return {
            "tokens_per_second": round(sums.speed, 3),
            "error": None if sums.error is None else round(sums.error, 3),
            "speedup": round(sums.speed / off, 4) if off else 0.0,
        }


def best_length(speeds: Mapping[str, SpeedSums]) -> str:
    """The fixed length with the highest speed."""
    return max((one for one in speeds if one != HINDSIGHT), key=lambda one: speeds[one].speed)


class _KnownPlace(NamedTuple):
    length: int
    num_right: int
    limit: float = 0.0


def counterfactual(
    guesses: Mapping[str, Sequence[Guess]], num_tokens: int, prices: Mapping[str, SpeculatorPrices]
) -> Counterfactual:
    """What would have been on a text of so many tokens, of which the first came from the prompt.

    O(tokens * lengths).
    """
    by_speculator: dict[str, dict[str, SpeedSums]] = {}
    places = {name: _places(made, num_tokens) for name, made in guesses.items()}
    for name, known in places.items():
        price = prices[name]
        chances = _chances(guesses[name])
        by_length = {
            str(k): _walk(known, k, price, chances) for k in LENGTHS if k < len(price.step)
        }
        unknown = _token_ms(by_length, price.step)
        by_length[HINDSIGHT] = _cheapest([(known, price)], num_tokens, unknown)
        by_length[HINDSIGHT].milliseconds += price.reading
        by_speculator[name] = by_length
    step = next(iter(prices.values())).step
    off = SpeedSums()
    for start in range(1, num_tokens, BLOCK):
        count = min(BLOCK, num_tokens - start)
        off.add(count, count * step[1])
    unknown = min(_token_ms(speeds, step) for speeds in by_speculator.values())
    best = _cheapest([(known, prices[name]) for name, known in places.items()], num_tokens, unknown)
    counts = {name: len(made) for name, made in guesses.items()}
    seen = {name: sum(place is not None for place in known[1:]) for name, known in places.items()}
    return Counterfactual(num_tokens - 1, off, best, by_speculator, counts, seen)


def _places(guesses: Sequence[Guess], num_tokens: int) -> list[_KnownPlace | None]:
    """By place of the text: what is known of a guess there."""
    places: list[_KnownPlace | None] = [None] * num_tokens
    for guess, following in pairwise([*guesses, Guess(num_tokens, 0, 0)]):
        at, length, right, limit = guess
        places[at] = _KnownPlace(length, right, limit)
        if right == length and following.at == at + length + 1 and following.num_right:
            # it would have gone on: the token between the two is the target's own
            length, right = length + 1 + following.length, right + 1 + following.num_right
        for i in range(1, min(right, following.at - at - 1) + 1):
            places[at + i] = _KnownPlace(length - i, right - i, limit)
    return places


def _walk(
    places: Sequence[_KnownPlace | None],
    longest: int,
    price: SpeculatorPrices,
    chances: Sequence[float],
) -> SpeedSums:
    """A run with a fixed length."""
    sums, at, step = SpeedSums(), 1, price.step
    tokens = milliseconds = 0.0
    count = 0
    while at < len(places):
        place = places[at]
        if place is None:
            at += 1
            continue
        length = min(place.length, longest)
        right = min(place.num_right, length)
        at += 1 + right
        tokens += 1 + right
        if price.is_model:
            if right == length < longest:
                tokens += _expected_more(length, longest, place.limit, chances)
            length = longest
            milliseconds += length * price.round
        milliseconds += step[1 + length]
        count += 1
        if count == BLOCK:
            sums.add(tokens, milliseconds)
            tokens = milliseconds = 0.0
            count = 0
    if count:
        sums.add(tokens, milliseconds)
    # once for the whole text: as much of it as was seen
    sums.milliseconds += price.reading * sums.tokens / max(1, len(places) - 1)
    return sums


def _chances(guesses: Sequence[Guess]) -> list[float]:
    """By position in a draft: that a model's token is right if those before it are. Each position
    leans on the one before.
    """
    chance, chances = PRIOR_RIGHT, []
    for i in range(LENGTHS[-1]):
        labelled = sum(guess.length > i <= guess.num_right for guess in guesses)
        right = sum(guess.num_right > i for guess in guesses)
        chance = (right + PRIOR_LABELS * chance) / (labelled + PRIOR_LABELS)
        chances.append(chance)
    return chances


def _expected_more(start: int, stop: int, limit: float, chances: Sequence[float]) -> float:
    """Tokens that a model would have had right from one position to another."""
    alive, tokens = 1.0, 0.0
    for i in range(start, stop):
        # the first one is the token at which it stopped, those behind it are like a new draft's
        alive *= chances[i] if not limit else STOPPED * limit if i == start else chances[i - start]
        tokens += alive
    return tokens


def _token_ms(speeds: Mapping[str, SpeedSums], step: Sequence[float]) -> float:
    """Milliseconds of a token with the best fixed length, or without drafts if that is faster."""
    known = [sums for name, sums in speeds.items() if name != HINDSIGHT and sums.tokens]
    return min([step[1], *(sums.milliseconds / sums.tokens for sums in known)])


def _cheapest(
    known: Sequence[tuple[Sequence[_KnownPlace | None], SpeculatorPrices]],
    num_tokens: int,
    unknown_ms: float,
) -> SpeedSums:
    """The shortest path through the text with right tokens only."""
    step = known[0][1].step
    left, chosen = [0.0] * (num_tokens + 1), [(0, 0.0)] * num_tokens
    for at in range(num_tokens - 1, 0, -1):
        plain = step[1] if any(places[at] for places, _ in known) else unknown_ms
        best, choice = plain + left[at + 1], (0, plain)
        for places, price in known:
            place = places[at]
            if place is None:
                continue
            most = min(place.num_right, num_tokens - at - 1, len(step) - 2, LENGTHS[-1])
            for n in range(1, most + 1):
                taken = step[1 + n] + n * price.round
                if taken + left[at + 1 + n] < best:
                    best, choice = taken + left[at + 1 + n], (n, taken)
        left[at], chosen[at] = best, choice
    sums, at, count, tokens, milliseconds = SpeedSums(), 1, 0, 0.0, 0.0
    while at < num_tokens:
        n, taken = chosen[at]
        at, tokens, milliseconds, count = (
            at + 1 + n,
            tokens + 1 + n,
            milliseconds + taken,
            count + 1,
        )
        if count == BLOCK:
            sums.add(tokens, milliseconds)
            count, tokens, milliseconds = 0, 0.0, 0.0
    if count:
        sums.add(tokens, milliseconds)
    return sums
