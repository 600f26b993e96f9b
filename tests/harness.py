"""A scheduler over fakes, and what every request must answer, computed one token at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.app.speculation import make_speculator
from headstart.config import SchedulerConfig, SpeculationConfig
from headstart.control.controller import Controller
from headstart.sampling.grammar.state import GrammarState
from headstart.sampling.sampler import Sampler
from headstart.scheduler import sequence as scheduling
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.guarded_speculator import GuardedSpeculator
from headstart.scheduler.policy import Policy, make_policy
from headstart.scheduler.scheduler import Scheduler
from headstart.scheduler.sequence import Cells
from headstart.scheduler.step import StepRecord
from headstart.speculators import Speculator
from headstart.testing import ByteVocab, FakeEngine, FakeFilters, LetterVocab
from headstart.testing import RandomController as RandomController
from headstart.types import CacheKind, Draft, DraftRequest
from headstart.types.request import (
    ErrorEvent,
    Event,
    FinishEvent,
    PromptEvent,
    Request,
    RequestStats,
    TokenEvent,
    TokenLogprob,
)
from headstart.types.sampling_params import SamplingParams

SIZE, EOS = 32, 31
SMALL_OPTIONS = {
    "ngram-simple": {"size_n": 2},
    "ngram-map-k": {"size_n": 2, "size_m": 8},
    "ngram-map-k4v": {"size_n": 2, "size_m": 8},
    "ngram-mod": {"n_match": 2, "table_bits": 12},
}  # n-grams short enough for short texts


class Model(FakeEngine):
    """A FakeEngine that remembers its answers; `skew` bends them, which makes a draft model of the
    target.
    """

    def __init__(
        self,
        order: int | None = None,
        *,
        skew: float = 0.0,
        context_size: int = 512,
        num_cells: int | None = None,
        cache_kind: CacheKind = CacheKind.CUT,
    ) -> None:
        # 8 sequences of a whole context each, unless a test is about too few cells
        super().__init__(
            SIZE,
            order,
            context_size=context_size,
            num_cells=num_cells or 8 * context_size,
            cache_kind=cache_kind,
        )
        self.skew = skew

    def make_filters(self, params: object) -> ReadingFilters:
        assert isinstance(params, SamplingParams)
        return ReadingFilters(params)

    def logits_after(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        seen = tokens if self._order is None else tokens[-self._order :]
        return _logits(tuple(seen), self.skew)


class ReadingFilters(FakeFilters):
    """Penalties too, so that a text read twice, late or not at all changes the tokens."""

    def __init__(self, params: SamplingParams) -> None:
        super().__init__(params)
        self._text: deque[int] = deque(maxlen=params.repeat_last_n if params.has_penalties else 0)

    def apply(
        self, ids: NDArray[np.int32], logits: NDArray[np.float32], use_xtc: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        if self._text:
            counts = np.bincount(self._text, minlength=SIZE)
            logits = logits - counts[ids].astype(np.float32)
        return super().apply(ids, logits, use_xtc)

    def accept(self, token: int) -> None:
        self._text.append(token)


@lru_cache(50_000)
def _logits(seen: tuple[int, ...], skew: float) -> NDArray[np.float32]:
    logits = FakeEngine(SIZE).logits_after(seen)
    if skew:
        logits = logits + np.float32(skew) * FakeEngine(SIZE).logits_after((*seen, 99))
    logits.flags.writeable = False
    return logits


class Clock:
    """Advances by a millisecond whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class Oracle(Speculator):
    """Drafts the tokens that will come, with a wrong one now and then (or never)."""

    name = "oracle"

    def __init__(
        self, engine: FakeEngine, requests: Sequence[Request], *, wrong: float = 0.2
    ) -> None:
        self.futures = [[*r.prompt, *answer(engine, r).tokens] for r in requests]
        self._wrong, self._random = wrong, np.random.default_rng(0)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [Draft(tokens := self._guess(r), [0.9] * len(tokens), self.name) for r in requests]

    def _guess(self, request: DraftRequest) -> list[int]:
        known = list(request.tokens)
        future = next(
            (f for f in self.futures if f[: len(known)] == known and len(f) > len(known)), known
        )
        guess = future[len(known) : len(known) + request.max_tokens]
        return [(t + 1) % SIZE if self._random.random() < self._wrong else t for t in guess]


@dataclass(slots=True)
class Answer:
    """What became of a request."""

    tokens: list[int] = field(default_factory=list)
    text: bytes = b""
    sources: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    end: FinishEvent | None = None
    error: ErrorEvent | None = None

    @property
    def finish(self) -> FinishEvent:
        assert self.end is not None, f"it did not finish: {self.error}"
        return self.end

    @property
    def stats(self) -> RequestStats:
        return self.finish.stats

    @property
    def reason(self) -> str:
        if self.error:
            return type(self.error.error).__name__
        return self.end.reason if self.end else ""

    def add(self, event: Event) -> None:
        assert self.end is None
        assert self.error is None
        if isinstance(event, TokenEvent):
            assert len(event.sources) == len(event.tokens)
            assert event.slot_id >= 0
            self.tokens += event.tokens
            self.text += event.text
            self.sources += event.sources
            self.logprobs += event.logprobs
        elif isinstance(event, PromptEvent):
            self.prompt_logprobs += event.logprobs
        elif isinstance(event, FinishEvent):
            self.end = event
        elif isinstance(event, ErrorEvent):
            self.error = event


def answer(
    engine: FakeEngine,
    request: Request,
    vocab: ByteVocab | None = None,
    legality: GrammarState | None = None,
) -> Answer:
    """What the request must answer: the rule applied token by token, without scheduler, cache or
    drafts.

    Stop strings are not played.
    """
    vocab = vocab or LetterVocab()
    sampler = Sampler(request.sampling, engine, vocab.eog_ids)
    tokens = list(request.prompt)
    sampler.read([token for token in tokens if token >= 0])
    result = Answer()
    limit = engine.context_size - len(tokens)
    limit = limit if request.max_tokens is None else min(limit, request.max_tokens)
    while len(result.tokens) < limit:
        logits = engine.logits_after(tokens)
        token = sampler.sample(logits, len(tokens))
        if legality is not None:
            legal = legality.legal_mask()
            while not legality.allows(token):
                legal[token] = False
                token = sampler.sample(logits, len(tokens), legal)
            legality.read(token)
        sampler.read([token])
        tokens.append(token)
        result.tokens.append(token)
        if token in vocab.eog_ids and not request.sampling.ignore_eos:
            break
        if legality is not None and legality.is_over:
            break
    result.text = b"".join(map(vocab.token_bytes, result.tokens))
    return result


def make_scheduler(
    engine: FakeEngine,
    speculators: Iterable[Speculator] = (),
    spec: SpeculationConfig | None = None,
    controller: Controller | None = None,
    vocab: ByteVocab | None = None,
    clock: Callable[[], float] | None = None,
    **limits: Any,
) -> Scheduler:
    clock = clock or Clock()
    guarded = [GuardedSpeculator(s, engine.vocab_size, clock) for s in speculators]
    # asking takes no time: every speculator is asked in every step
    drafting = Drafting(guarded, spec or fixed(4), controller or Controller(), clock=lambda: 0.0)
    return Scheduler(
        engine,
        vocab or LetterVocab(),
        drafting,
        SchedulerConfig(**{"parallel": 4, "prefill_ms": 0.0, **limits}),
        clock,
    )


def make_speculators(
    names: Sequence[str], draft: Callable[[], FakeEngine] = lambda: Model(2, skew=0.3)
) -> list[Speculator]:
    parts: dict[str, Callable[[], Any]] = {
        "engine": draft,
        "vocab": lambda: None,
        "translator": lambda: None,
    }
    return [make_speculator(name, SMALL_OPTIONS, parts) for name in names]


def fixed(length: int) -> SpeculationConfig:
    return SpeculationConfig(spec="fixed", draft_max=length)


AUTO = SpeculationConfig(spec="auto")
ENDLESS = SamplingParams(temperature=0.8, ignore_eos=True)


def endless(
    prompt: Iterable[int], max_tokens: int | None = None, name: str = "r", **more: Any
) -> Request:
    """A request that no end of the turn ends."""
    fields = {"sampling": ENDLESS, **more}
    return Request(request_id=name, prompt=list(prompt), max_tokens=max_tokens, **fields)


REQUEST = endless(range(1, 31), 60)


def make_requests(
    num: int, temperature: float = 0.8, *, seed: int = 0, max_tokens: int = 24
) -> list[Request]:
    """Prompts of 1 to 40 tokens, some with a common beginning, with seeds and penalties of their
    own.
    """
    random = np.random.default_rng(seed)
    common = random.integers(0, EOS, 12).tolist()
    requests = []
    for index in range(num):
        own = random.integers(0, EOS, int(random.integers(1, 28))).tolist()
        sampling = SamplingParams(
            temperature=temperature,
            seed=index,
            top_k=0 if index % 2 else 12,
            repeat_last_n=8,
            repeat_penalty=1.2 if index % 3 == 0 else 1.0,
            ignore_eos=index % 4 != 0,
        )
        prompt = common * (index % 2) + own
        requests.append(
            Request(request_id=f"r{index}", prompt=prompt, sampling=sampling, max_tokens=max_tokens)
        )
    return requests


def run(
    scheduler: Scheduler, requests: Iterable[Request] = (), answers: dict[str, Answer] | None = None
) -> dict[str, Answer]:
    """Like `play`; no speculator may have failed on the way."""
    answers = play(scheduler, requests, answers)
    if failures := [
        speculator.failure
        for speculator in scheduler.drafting.speculators.values()
        if speculator.failure
    ]:
        raise AssertionError(failures)
    return answers


def run_checked(scheduler: Scheduler, requests: Sequence[Request]) -> dict[str, Answer]:
    """Like `run`; every answer is that of the rule."""
    answers = run(scheduler, requests)
    check(scheduler.engine, requests, answers)
    return answers


def play(
    scheduler: Scheduler, requests: Iterable[Request] = (), answers: dict[str, Answer] | None = None
) -> dict[str, Answer]:
    """Submit and step until nothing is left."""
    submit_all(scheduler, requests)
    answers = step_until(scheduler, lambda _: not scheduler.has_work, answers)
    collect(scheduler, answers)
    return answers


def step_until(
    scheduler: Scheduler,
    is_over: Callable[[dict[str, Answer]], object],
    answers: dict[str, Answer] | None = None,
) -> dict[str, Answer]:
    """Step until this holds for what was answered so far."""
    answers = {} if answers is None else answers
    while not is_over(answers):
        scheduler.step()
        collect(scheduler, answers)
    return answers


def steps(scheduler: Scheduler) -> Iterator[StepRecord]:
    """Each step until nothing is left."""
    while scheduler.has_work:
        yield scheduler.step()


def submit_all(scheduler: Scheduler, requests: Iterable[Request], num_steps: int = 0) -> None:
    """Submit these, and make so many steps."""
    for request in requests:
        scheduler.submit(request)
    for _ in range(num_steps):
        scheduler.step()


def collect(scheduler: Scheduler, answers: dict[str, Answer]) -> None:
    for event in scheduler.take_events():
        answers.setdefault(event.request_id, Answer()).add(event)


def check(
    engine: FakeEngine,
    requests: Sequence[Request],
    answers: dict[str, Answer],
    rule: Callable[[FakeEngine, Request], Answer] = answer,
) -> None:
    """Every request has exactly the tokens of the rule."""
    for request in requests:
        got, expected = answers[request.request_id], rule(engine, request)
        if got.tokens != expected.tokens:
            raise AssertionError(
                f"{request.request_id}: {got.tokens} {got.text!r} instead of {expected.tokens} "
                f"{expected.text!r}; {got.error}"
            )


def sequence_of(
    request: Request, *, cells: Cells | None = None, policy: Policy | None = None, number: int = 0
) -> scheduling.Sequence:
    """A request that was submitted, and has these cells."""
    policy = policy or make_policy(request.speculative, AUTO, (), "")
    sequence = scheduling.Sequence(number, request, policy, submitted=0.0)
    if cells is not None:
        cells.tokens, cells.user, sequence.cells = sequence.tokens, sequence, cells
    return sequence


def renamed(request: Request, request_id: str) -> Request:
    return replace(request, request_id=request_id)
