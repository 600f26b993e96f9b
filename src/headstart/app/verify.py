"""Checks whether texts are the same with and without speculation, and explains differences.

The same requests are answered by one slot without speculation, then in every other way. Where two
texts diverge, the model decodes their common prefix, and we compute how much the logits must change
until the sampling rule gives the other token. Widths of decodes and cached values change logits
slightly; a change of that size makes it a near tie, which libllama's kernels decide. A larger one
indicates a bug.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.sampling.sampler import Sampler
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.widths import WidthComparison, logits_behind
from headstart.types import CacheKind, DraftMode
from headstart.types.errors import in_words
from headstart.types.request import (
    ErrorEvent,
    FinishEvent,
    Request,
    SpeculativeParams,
    TokenEvent,
)
from headstart.types.widths import WidthClasses

TEMPERATURES = (0.0, 0.8, 1.5)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to answer the requests."""

    slots: int
    speculation: str  # off, auto, or a speculator and its draft length: "suffix 16"
    wishes: SpeculativeParams
    prompts: str  # cached: answered before, and maybe restored; arriving: while others answer

    def __str__(self) -> str:
        slots = f"{self.slots} slot{'s' * (self.slots > 1)}"
        return f"{self.speculation}, {slots}, {self.prompts} prompts"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a text diverges from the one without speculation."""

    way: str
    temperature: float
    request_id: str
    position: int  # of the answer's tokens
    kind: str  # "near tie" or "different"
    margin: float | None  # how much logits have to change; None: no change gives the other token
    error: str = ""


@dataclass(slots=True)
class TextComparison:
    """Results of the comparison."""

    classes: WidthClasses
    cache_kind: CacheKind
    is_exact: bool
    change: float = 0.0  # most that a way to read a text was seen to change a logit
    texts: dict[str, int] = field(default_factory=dict)  # by way
    num_tokens: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_restored: int = 0  # prompts, from main memory
    differences: tuple[Difference, ...] = ()

    @property
    def num_texts(self) -> int:
        return sum(self.texts.values())

    @property
    def num_different(self) -> int:
        return sum(one.kind == "different" for one in self.differences)

    @property
    def num_near_ties(self) -> int:
        return len(self.differences) - self.num_different

    def __str__(self) -> str:
        same = self.num_texts - len(self.differences)
        words = f"{self.num_texts} texts: {same} the same, {self.num_near_ties} part at a near tie"
        return f"{words}, {self.num_different} are different"

    def describe(self) -> dict[str, Any]:
        """For programs."""
        counts = ("texts", "tokens", "near_ties", "different", "drafted", "accepted", "restored")
        return {name: getattr(self, f"num_{name}") for name in counts} | {
            "verdict": str(self),
            "is_exact": self.is_exact,
            "widths": str(self.classes),
            "change": self.change,
            "milliseconds": dict(self.classes.milliseconds),
            "same": self.num_texts - len(self.differences),
            "ways": self.texts,
            "differences": [asdict(one) for one in self.differences],
        }


Answer = tuple[int, ...] | str
"""The tokens of an answer, or the error."""


def verify(
    open_scheduler: Callable[[int], Scheduler],
    requests: Sequence[Request],
    slots: Sequence[int],
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    is_exact: bool = False,
    tell: Callable[[Way, int, list[Difference]], None] = lambda *_: None,
) -> TextComparison:
    """Answer the requests in every way and compare; each speculator by itself, half of them.

    Args:
        open_scheduler: creates one with this many slots and all speculators; called with 1
            first.
        requests: asked at each temperature, all at once.
        is_exact: no difference is allowed, even near ties.
        tell: called after each way, with the number of texts and those that differ.
    """
    plain = open_scheduler(1)
    if (classes := plain.widths) is None:
        classes = WidthComparison(plain.engine, [0], plain.clock).run()
        assert classes is not None, "nobody interrupts it"
    verdict = TextComparison(classes, plain.engine.cache_kind, is_exact)
    off = Way(1, "off", SpeculativeParams(mode=DraftMode.OFF), "fresh")
    asked = [_at(request, temperature) for temperature in temperatures for request in requests]
    expected = _answer(plain, asked, off)
    for num_slots in slots:
        scheduler = plain if num_slots == 1 else open_scheduler(num_slots)
        has_measured = is_exact  # what ways to read the prompts change: once texts differ
        for way in _ways(scheduler, num_slots):
            if way == off:
                continue
            share = slice(None, None, 1 if way.speculation in ("off", "auto") else 2)
            some, right = asked[share], expected[share]
            got = _answer(scheduler, some, way)
            if got != right and not has_measured:
                has_measured = True
                for request in requests:
                    verdict.change = max(verdict.change, _read(scheduler, request.prompt)[1])
            found = [
                _explain(scheduler, request, way, answers, verdict)
                for request, *answers in zip(some, right, got, strict=True)
                if answers[0] != answers[1]
            ]
            verdict.texts[str(way)] = len(got)
            verdict.num_tokens += sum(len(one) for one in got if isinstance(one, tuple))
            verdict.differences += tuple(found)
            tell(way, len(got), found)
        stats = scheduler.outcomes.total.drafts
        verdict.num_drafted += stats.num_drafted
        verdict.num_accepted += stats.num_accepted
        verdict.num_restored += scheduler.counters.prompts_restored
    return verdict


def _at(request: Request, temperature: float) -> Request:
    sampling = replace(request.sampling, temperature=temperature)
    return replace(request, request_id=f"{request.request_id} at {temperature}", sampling=sampling)


def _ways(scheduler: Scheduler, num_slots: int) -> Iterator[Way]:
    """Fresh prompts come first: the next answers find them in the cache."""
    speculators = list(scheduler.drafting.speculators)
    for name in ["off", *speculators, *["auto"] * bool(speculators)]:
        # how prompts are processed, and the draft length if fixed
        for prompts, length in (("fresh", 3), ("cached", 16), ("arriving", 16)):
            if name in ("off", "auto"):
                yield Way(num_slots, name, SpeculativeParams(mode=DraftMode(name)), prompts)
                continue
            wishes = SpeculativeParams(mode=DraftMode.FIXED, types=(name,), n_max=length)
            yield Way(num_slots, f"{name} {length}", wishes, prompts)


def _answer(scheduler: Scheduler, requests: Sequence[Request], way: Way) -> list[Answer]:
    tokens: dict[str, tuple[int, ...]] = {}
    errors: dict[str, str] = {}
    is_cached, coming = way.prompts == "cached", list(requests)
    num_steps = 0
    while coming or scheduler.has_work:
        # nine steps are between two that arrive
        while coming and (way.prompts != "arriving" or num_steps % 9 == 0):
            wanted = replace(coming.pop(0), speculative=way.wishes, cache_prompt=is_cached)
            scheduler.submit(wanted)
            if way.prompts == "arriving":
                break
        scheduler.step()
        num_steps += 1
        for event in scheduler.take_events():
            name = event.request_id
            if isinstance(event, TokenEvent):
                tokens[name] = tokens.get(name, ()) + event.tokens
            elif isinstance(event, ErrorEvent):
                errors[name] = in_words(event.error)
            elif isinstance(event, FinishEvent):
                tokens.setdefault(name, ())
    ids = [request.request_id for request in requests]
    return [errors[name] if name in errors else tokens.get(name, "it did not end") for name in ids]


def _explain(
    scheduler: Scheduler,
    request: Request,
    way: Way,
    answers: Sequence[Answer],
    verdict: TextComparison,
) -> Difference:
    """Why two answers differ, that without speculation first."""
    expected, got = answers
    place = (str(way), request.sampling.temperature, request.request_id)
    if isinstance(expected, str) or isinstance(got, str):
        error = got if isinstance(got, str) else f"without speculation: {expected}"
        return Difference(*place, 0, "different", None, error)
    pairs = zip(expected, got, strict=False)
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if position is None:
        shorter = min(len(expected), len(got))
        return Difference(*place, shorter, "different", None, "one ends, the other continues")
    text = [*request.prompt, *expected[:position]]
    logits, change = _read(scheduler, text)
    verdict.change = max(verdict.change, change)
    margin = _margin(scheduler, request, expected[: position + 1], logits, got[position])
    # four times what was seen to change a logit: few of many ways to read a text are tried
    is_near = margin is not None and margin <= 4.0 * verdict.change and not verdict.is_exact
    return Difference(*place, position, "near tie" if is_near else "different", margin)


def _read(scheduler: Scheduler, text: Sequence[int]) -> tuple[NDArray[np.float32], float]:
    """Logits of the next token of a text, and how much other ways of decoding it change one."""
    # rows of a decode that reads a text: each number fills the cache by other kernels
    ways = [(rows, 0) for rows in (32, 5, 2, 1, 128)]
    if len(scheduler.cells) > 1 and 2 * len(text) <= scheduler.engine.num_cells:
        # of a text, whose rest is decoded into earlier cells
        ways += [
            (rows, int(share * len(text)))
            for share in (0.1, 0.3, 0.5, 0.7, 0.9)
            for rows in (32, 5)
        ]
    while scheduler.cache.offloading.evict():
        """Prompts of the answers go to main memory."""
    engine = scheduler.engine
    logits, *others = (logits_behind(engine, (0, 1), text, *way)[-1] for way in ways)
    return logits, max(float(np.abs(logits - one).max()) for one in others)


def _margin(
    scheduler: Scheduler,
    request: Request,
    answer: Sequence[int],
    logits: NDArray[np.float32],
    token: int,
) -> float | None:
    """How much logits must change until the rule chooses this token instead of the answer's last
    one: its own rises and the other's falls, or all change at random, since what a filter drops
    depends on the others too.

    Includes filters and noise: the actual rule is used, not an imitation.
    """
    sampler = Sampler(request.sampling, scheduler.engine, scheduler.vocab.eog_ids)
    *before, last = answer
    sampler.read([*request.prompt, *before])
    position = len(request.prompt) + len(before)

    directions = np.random.default_rng(0).uniform(-1.0, 1.0, (33, len(logits)))
    directions[0] = 0.0
    directions[0, [token, last]] = 1.0, -1.0

    def is_chosen(change: float) -> bool:
        others = (logits + (change * one).astype(np.float32) for one in directions)
        return any(sampler.sample(other, position) == token for other in others)

    return _least(is_chosen)


def _least(is_enough: Callable[[float], bool]) -> float | None:
    """The smallest number that is enough, to 2 %; None if none is."""
    # if a change of 64 does not suffice, filters or text differ
    sizes = [0.0, *(2.0 ** (step / 32) for step in range(-12 * 32, 6 * 32 + 1))]
    index = bisect_left(sizes, True, key=is_enough)
    return sizes[index] if index < len(sizes) else None
