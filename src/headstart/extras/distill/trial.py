"""A timed trial: a tuned draft model against the best alternative, on this machine.

The result of replay and prices must hold with the server's own control: on later texts, and on
unrelated questions. First one answers all of them, then the other.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from math import inf
from pathlib import Path

import numpy as np

from headstart.app.assemble import build_scheduler
from headstart.app.model_files import Models
from headstart.config import Config
from headstart.engine.model import Model
from headstart.extras.bench.library import make_questions
from headstart.extras.distill.proof import Interval, Proof, compared
from headstart.extras.distill.texts import RecordedText
from headstart.types import Vocab
from headstart.types.errors import EngineError
from headstart.types.request import ErrorEvent, Request, TokenEvent

LEAST_ELSEWHERE = 0.97  # of the tokens/s without it


def run_trial(
    config: Config,
    target: Path,
    ways: Sequence[tuple[Path | None, str]],
    earlier: Sequence[RecordedText],
    later: Sequence[RecordedText],
) -> Proof:
    """Let two ways of drafting answer: a draft model and `--spec` of each, the tuned one's first.

    One is loaded when the other is gone, so that both have the same memory. `later`, `elsewhere`:
    multiples of the tokens/s without the tuned model, with 95 % intervals over texts.

    Raises:
        ConfigError, ModelError: something cannot be loaded.
        EngineError: a text cannot be answered.
    """
    vocab = Model(target).vocab
    # not timed
    warm = [_request(f"warm {number}", text) for number, text in enumerate(earlier[-8:])]
    texts = [_request(f"later {number}", text) for number, text in enumerate(later[:32])]
    requests = [*warm, *texts, *_other_questions(vocab)]
    longest = max(len(one.prompt) + (one.max_tokens or 0) for one in requests)
    limits = replace(config.scheduler, parallel=1, kv_unified_per_slot=0)
    engine = replace(config.engine, context=longest + 64)  # and drafts
    config, found = replace(config, engine=engine, scheduler=limits), list[list[Answer]]()
    for draft, spec in ways:
        speculation = replace(config.speculation, spec=spec, spec_type=None, options={})
        models = Models(target, draft)
        found.append(_answers(replace(config, speculation=speculation), models, requests))
        gc.collect()  # and whatever of it refers to itself
    pairs = list(zip(*found, strict=True))[len(warm) :]
    on_later, elsewhere = _ratio(pairs[: len(texts)]), _ratio(pairs[len(texts) :])
    # with --exact none, else where two tokens were as likely
    num_different = sum(ours[1] != theirs[1] for ours, theirs in pairs)
    facts = {"later": asdict(on_later), "elsewhere": asdict(elsewhere)}
    refusal = refusal_of(on_later, elsewhere)
    report = (
        f"timed on later texts: {on_later} times as fast as without it",
        f"timed on other questions: {elsewhere}",
        f"texts that differ: {num_different} of {len(pairs)}",
        f"not promoted: {refusal}" if refusal else "promoted",
    )
    numbers = {"num_texts": len(pairs), "num_different": num_different}
    return Proof({**facts, **numbers}, report, refusal)


def refusal_of(later: Interval, elsewhere: Interval) -> str:
    """The reason against promotion; "" if there is none."""
    if not 1.0 <= later.value < inf:  # may be NaN
        return f"timed on later texts it is {later} times as fast as without it"
    if not LEAST_ELSEWHERE <= elsewhere.value < inf:
        return (
            f"timed on other questions it is {elsewhere} times as fast as without it, and "
            f"{LEAST_ELSEWHERE} is the least"
        )
    return ""


Answer = tuple[float, list[int]]
"""Seconds, and the tokens."""


def _answers(config: Config, models: Models, requests: Iterable[Request]) -> list[Answer]:
    """Answers to each request, run separately."""
    scheduler, _ = build_scheduler(config, models)
    found = list[Answer]()
    for request in requests:
        tokens, started = list[int](), time.perf_counter()
        scheduler.submit(request)
        while scheduler.has_work:
            scheduler.step()
            for event in scheduler.take_events():
                if isinstance(event, ErrorEvent):
                    raise EngineError(f"the timed trial could not continue: {event.error}")
                if isinstance(event, TokenEvent):
                    tokens += event.tokens
        found.append((time.perf_counter() - started, tokens))
    return found


def _request(name: str, text: RecordedText) -> Request:
    limit = len(text.answer)
    return Request(request_id=name, prompt=text.prompt, sampling=text.sampling, max_tokens=limit)


def _other_questions(vocab: Vocab) -> Iterator[Request]:
    for name in ("edit", "json", "continue", "words"):
        for number, question in enumerate(make_questions(name, 4, "trial")):
            text = str(question.turns[0])
            prompt = vocab.tokenize(text, add_special=True, parse_special=False)
            yield Request(request_id=f"{name} {number}", prompt=prompt, max_tokens=64)


def _ratio(found: Sequence[tuple[Answer, ...]]) -> Interval:
    """Ratio of tokens per second, with its interval over texts."""
    ours, theirs = (
        np.array([(len(tokens), seconds) for seconds, tokens in one])
        for one in zip(*found, strict=True)
    )
    return compared(ours, theirs, np.divide)
