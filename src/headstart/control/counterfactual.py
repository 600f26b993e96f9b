"""What each speculator alone would have given on a text that has been written, in tokens and
milliseconds, from the guesses that it made while others, or nobody, drafted.

A guess that was made at one place of the text says how far it would have been accepted there, and
by that also at the places that it got right: the rest of it. So most places are known, and a run
with a fixed length can be walked through: at each place it verifies the guess, up to its length,
pays for so many rows, and goes on behind the first wrong token. Places of which nothing is known
are left out, as if they were like the others.

A model is asked only where it pays, and stops where it is unsure: its drafts say little of the
other places. So it reads the text (`scheduler.guess_log`) and tells what it would have picked at
each. What is not known even so is filled in (`model_picks`).

Hindsight takes at each place the number of tokens that makes the whole text cheapest, and only
tokens that are right: the shortest path through the text. Places of which nothing is known cost as
much as a token does with the best fixed length.

The error is that of a ratio: a text is cut into blocks, and what their tokens and milliseconds vary
by is what another text of the kind would vary by. That of the prices is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple

from headstart.control.model_picks import fill

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
HINDSIGHT = "hindsight"
BLOCK = 24  # steps: longer than most passages that go well or badly as a whole


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
    token: float = 0.0  # that a model reads: behind a draft that was right, its last one
    reading: float = 0.0  # of the prompt, before a model drafts
    is_model: bool = False


@dataclass(frozen=True, slots=True)
class WrittenText:
    """What is known of a text beside the guesses. Its first token came from the prompt."""

    num_tokens: int
    num_prompt: int = 0  # tokens before it
    max_tokens: int | None = None  # that it might have had: the last drafts are shorter for that
    # of models that have read it: whether each pick was right, from the second token on
    picks: Mapping[str, Sequence[bool]] = field(default_factory=dict)


@dataclass(slots=True)
class SpeedSums:
    """Tokens and milliseconds, and what their error follows from; adds up over texts."""

    tokens: float = 0.0
    milliseconds: float = 0.0
    num_blocks: float = 0.0
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

    def scale(self, factor: float) -> None:
        """As if so many times as much had been seen."""
        for name in SpeedSums.__slots__:
            setattr(self, name, getattr(self, name) * factor)

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


def counterfactual(
    guesses: Mapping[str, Sequence[Guess]],
    text: WrittenText,
    prices: Mapping[str, SpeculatorPrices],
) -> Counterfactual:
    """What would have been on this text. O(tokens * lengths)."""
    num_tokens = text.num_tokens
    by_speculator: dict[str, dict[str, SpeedSums]] = {}
    places: dict[str, list[_KnownPlace | None]] = {}
    for name, made in guesses.items():
        price = prices[name]
        lengths = [k for k in LENGTHS if k < len(price.step)]
        if price.is_model:
            known = _known_picks(made, text.picks.get(name, ()), num_tokens)
            places[name] = _places_of_picks(known)
            filled = [_runs(one) for one in fill(known, _stops(made))]
            most = text.max_tokens or num_tokens + LENGTHS[-1] + 1
            walks = {
                k: _mean([_walk_model(runs, k, most, price) for runs in filled]) for k in lengths
            }
        else:
            places[name] = _places(made, num_tokens)
            walks = {k: _walk(places[name], k, price) for k in lengths}
        by_length = {str(k): sums for k, sums in walks.items()}
        unknown = _token_ms(by_length, price.step)
        by_length[HINDSIGHT] = _cheapest([(places[name], price)], num_tokens, unknown)
        by_length[HINDSIGHT].milliseconds += price.reading
        by_speculator[name] = by_length
    step = next(iter(prices.values())).step
    off = SpeedSums()
    for start in range(1, num_tokens, BLOCK):
        count = min(BLOCK, num_tokens - start)
        off.add(count, count * step[1])
    unknown = min(_token_ms(speeds, step) for speeds in by_speculator.values())
    best = _cheapest([(known, prices[name]) for name, known in places.items()], num_tokens, unknown)
    # what one of them alone would have given, all can: places that it knows nothing of are taken to
    # be like the others, and another may know better
    alone = max((one[HINDSIGHT] for one in by_speculator.values()), key=lambda sums: sums.speed)
    best = replace(alone) if alone.speed > best.speed else best
    counts = {name: len(made) for name, made in guesses.items()}
    seen = {name: sum(place is not None for place in known[1:]) for name, known in places.items()}
    return Counterfactual(num_tokens - 1, off, best, by_speculator, counts, seen)


def _places(guesses: Sequence[Guess], num_tokens: int) -> list[_KnownPlace | None]:
    """By place of the text: what is known of a text speculator's guess there."""
    places: list[_KnownPlace | None] = [None] * num_tokens
    for guess, following in pairwise([*guesses, Guess(num_tokens, 0, 0)]):
        at, length, right, _ = guess
        places[at] = _KnownPlace(length, right)
        if right == length and following.at == at + length + 1 and following.num_right:
            # it would have gone on: the token between the two is the target's own
            length, right = length + 1 + following.length, right + 1 + following.num_right
        for i in range(1, min(right, following.at - at - 1) + 1):
            places[at + i] = _KnownPlace(length - i, right - i)
    return places


def _known_picks(
    guesses: Sequence[Guess], picks: Sequence[bool], num_tokens: int
) -> list[bool | None]:
    """By place: whether the model's token is the text's; what it said while reading comes first."""
    known: list[bool | None] = [None] * num_tokens
    known[0] = False  # the prompt's own: nobody drafts it
    for at, length, right, _ in guesses:
        known[at : at + right] = [True] * right
        if right < length:
            known[at + right] = False
    known[1 : 1 + len(picks)] = picks[: num_tokens - 1]
    return known


def _stops(guesses: Sequence[Guess]) -> dict[int, float]:
    """Places at which a model stopped because it was unsure, with its limit."""
    return {
        guess.at + guess.length: guess.limit
        for guess in guesses
        if guess.limit and guess.num_right == guess.length
    }


def _runs(picks: Sequence[bool | None]) -> list[int]:
    """By place: how many picks from there on are right."""
    runs, run = [0] * len(picks), 0
    for at in range(len(picks) - 1, -1, -1):
        run = run + 1 if picks[at] else 0
        runs[at] = run
    return runs


def _places_of_picks(known: Sequence[bool | None]) -> list[_KnownPlace | None]:
    runs = _runs(known)
    return [
        None if pick is None else _KnownPlace(run + 1, run)
        for pick, run in zip(known, runs, strict=True)
    ]


def _walk(places: Sequence[_KnownPlace | None], longest: int, price: SpeculatorPrices) -> SpeedSums:
    """A run of a text speculator with a fixed length."""
    sums, at = _BlockSums(), 1
    while at < len(places):
        place = places[at]
        if place is None:
            at += 1
            continue
        length = min(place.length, longest)
        right = min(place.num_right, length)
        sums.step(1 + right, price.step[1 + length])
        at += 1 + right
    return sums.finish()


def _walk_model(
    runs: Sequence[int], longest: int, max_tokens: int, price: SpeculatorPrices
) -> SpeedSums:
    """A run of a model with a fixed length, which reads the prompt first."""
    sums, at = _BlockSums(), 1
    while at < len(runs):
        length = min(longest, max_tokens - at - 1)
        right = min(runs[at], length)
        taken = length * price.round + price.step[1 + length]
        if right == length:
            taken += price.token
        sums.step(min(1 + right, len(runs) - at), taken)
        at += 1 + right
    total = sums.finish()
    total.milliseconds += price.reading
    return total


class _BlockSums:
    """Steps of one run, summed up in blocks."""

    def __init__(self) -> None:
        self._sums, self._count = SpeedSums(), 0
        self._tokens = self._milliseconds = 0.0

    def step(self, tokens: float, milliseconds: float) -> None:
        self._tokens += tokens
        self._milliseconds += milliseconds
        self._count += 1
        if self._count == BLOCK:
            self.finish()

    def finish(self) -> SpeedSums:
        """With the block that is not full."""
        if self._count:
            self._sums.add(self._tokens, self._milliseconds)
            self._tokens, self._milliseconds, self._count = 0.0, 0.0, 0
        return self._sums


def _mean(runs: Sequence[SpeedSums]) -> SpeedSums:
    total = SpeedSums()
    for sums in runs:
        total += sums
    total.scale(1.0 / len(runs))
    return total


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
    sums, at = _BlockSums(), 1
    while at < num_tokens:
        n, taken = chosen[at]
        sums.step(1 + n, taken)
        at += 1 + n
    return sums.finish()
