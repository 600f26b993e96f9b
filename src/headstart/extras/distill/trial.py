"""A timed trial: a tuned draft model beside the best there is without it, on this machine.

What was proven by replay and prices has to hold with the server's own control: on later texts, and
on questions that have nothing to do with them. Both answer each of them in turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.app.assemble import build_scheduler
from headstart.app.model_files import Models
from headstart.config import Config
from headstart.extras.bench.library import make_questions
from headstart.extras.distill.proof import NUM_DRAWS, Interval, interval_of
from headstart.extras.distill.texts import RecordedText
from headstart.scheduler.step import StepRecord
from headstart.types.request import Request

LEAST_AGREED, LEAST_ELSEWHERE = 1.0, 0.97  # of the tokens/s without it
NUM_TEXTS, NUM_WARM = 32, 8  # later texts, and earlier ones before them, which are not timed
OTHERS, NUM_OTHERS, OTHER_TOKENS = ("edit", "json", "continue", "words"), 4, 64


@dataclass(frozen=True, slots=True)
class TimedTrial:
    """The result: multiples of the tokens/s without the tuned model."""

    later: Interval
    elsewhere: Interval
    num_texts: int
    num_different: int  # texts; with --exact none, else where two tokens were as likely

    @property
    def refusal(self) -> str:
        """The reason against promotion; "" if it agrees."""
        if self.later.value < LEAST_AGREED:
            return f"timed on later texts it is {self.later} times as fast as without it"
        if self.elsewhere.value < LEAST_ELSEWHERE:
            return (
                f"timed on other questions it is {self.elsewhere} times as fast as without it, and "
                f"{LEAST_ELSEWHERE} is the least"
            )
        return ""

    def describe(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "refusal": self.refusal}

    def report(self) -> Iterator[str]:
        """Lines to print; 95 % intervals over texts."""
        yield f"timed on later texts: {self.later} times as fast as without it"
        yield f"timed on other questions: {self.elsewhere}"
        yield f"texts that differ: {self.num_different} of {self.num_texts}"
        yield f"not promoted: {self.refusal}" if self.refusal else "promoted"


class Answerer:
    """One way of drafting, at work."""

    def __init__(
        self, config: Config, target: Path, draft: Path | None, spec: str = "auto"
    ) -> None:
        """`spec`: as the flag."""
        speculation = replace(config.speculation, spec=spec, spec_type=None, options={})
        settings = replace(config, speculation=speculation)
        models = Models(target, draft, is_demo=False)
        self.scheduler, _ = build_scheduler(settings, models)
        self.scheduler.readers.append(self._read)
        self._tokens: list[int] = []

    def _read(self, record: StepRecord) -> None:
        for index, _ in record.plan.decoded:
            self._tokens += record.emitted[index]

    def answer(self, request: Request) -> tuple[float, list[int]]:
        """Seconds, and the tokens."""
        self._tokens = []
        started = time.perf_counter()
        self.scheduler.submit(request)
        while self.scheduler.has_work:
            self.scheduler.step()
            self.scheduler.take_events()
        return time.perf_counter() - started, self._tokens


def run_trial(
    own: Answerer,
    best: Answerer,
    earlier: Sequence[RecordedText],
    later: Sequence[RecordedText],
) -> TimedTrial:
    """Let both answer."""
    for number, text in enumerate(earlier[-NUM_WARM:]):
        for arm in (own, best):
            arm.answer(_request(f"warm {number}", text))
    texts = [_request(f"later {number}", text) for number, text in enumerate(later[:NUM_TEXTS])]
    found = [*_answers(own, best, texts)]
    others = [*_answers(own, best, _other_questions(own))]
    return TimedTrial(
        _ratio(found),
        _ratio(others),
        len(found) + len(others),
        sum(ours[1] != theirs[1] for ours, theirs in (*found, *others)),
    )


Pair = tuple[tuple[float, list[int]], tuple[float, list[int]]]


def _answers(own: Answerer, best: Answerer, requests: Iterable[Request]) -> Iterator[Pair]:
    for number, request in enumerate(requests):
        if number % 2:
            theirs = best.answer(request)
            yield own.answer(request), theirs
        else:
            yield own.answer(request), best.answer(request)


def _request(name: str, text: RecordedText) -> Request:
    limit = len(text.answer)
    return Request(request_id=name, prompt=text.prompt, sampling=text.sampling, max_tokens=limit)


def _other_questions(arm: Answerer) -> Iterator[Request]:
    tokenize = arm.scheduler.vocab.tokenize
    for name in OTHERS:
        for number, question in enumerate(make_questions(name, NUM_OTHERS, "trial")):
            prompt = tokenize(str(question.turns[0]), add_special=True, parse_special=False)
            yield Request(request_id=f"{name} {number}", prompt=prompt, max_tokens=OTHER_TOKENS)


def _ratio(found: Sequence[Pair]) -> Interval:
    """Of tokens per second, with its interval over texts."""
    sums = np.array([[len(o[1]), o[0], len(t[1]), t[0]] for o, t in found])

    def statistic(drawn: NDArray[np.intp]) -> NDArray[np.float64]:
        total = sums[drawn].sum(-2)
        ratio: NDArray[np.float64] = total[..., 0] * total[..., 3] / (total[..., 1] * total[..., 2])
        return ratio

    draws = np.random.default_rng(0).integers(len(sums), size=(NUM_DRAWS, len(sums)))
    return interval_of(statistic, draws)
