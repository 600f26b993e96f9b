"""Wraps a speculator: catches its exceptions and measures its time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf, isfinite
from operator import index
from typing import Any

import numpy as np
import orjson

from headstart.speculators.base import Speculator
from headstart.structures.suffix_index import SEPARATOR
from headstart.types import DecodedStates, Draft, DraftRequest, SavedState
from headstart.types.errors import in_words, plain_text
from headstart.types.report import SpeculatorReport
from headstart.types.speculation_stats import SpeculationStats

log = logging.getLogger(__name__)

FAILED = "speculator failed"
_FAILURES = (Exception, SystemExit)  # a failed draft must not fail a request
# Calls whose time is reported under another name.
_PHASES = {
    **dict.fromkeys(("end", "end_private", "go_on", "save_sequence"), "accept"),
    "restore_sequence": "begin",
    **dict.fromkeys(("observe_states", "truncate", "copy_prefix", "checkpoint"), "observe"),
    "num_resumable": "observe",
    "num_catch_up": "propose",
}


def _count(number: Any) -> int:
    return max(0, int(number))


def _data(state: Any) -> Any:
    if state is None or isinstance(state, bytes | bytearray | SavedState):
        return state
    raise TypeError(f"save_sequence returned {state!r:.60} but must return bytes, or None")


# Checks and converts the results of these calls.
_READERS: dict[str, Callable[[Any], Any]] = {
    "num_catch_up": _count,
    "num_resumable": _count,
    "save_sequence": _data,
}


class GuardedSpeculator:
    """One speculator. An exception disables it for the affected sequences, and is logged once.

    Failures in `describe` and `close` do not disable the speculator.
    """

    def __init__(
        self,
        speculator: Speculator,
        vocab_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Guard a speculator for a target with `vocab_size` token ids."""
        self.speculator = speculator
        self.name = speculator.name
        self.is_model = speculator.is_model
        self._vocab_size = vocab_size
        self.failure = ""
        self.last_seconds = 0.0  # of the last propose
        self._clock = clock
        self.failed: set[int] = set()  # seq_ids for which it is disabled
        self._seconds = dict.fromkeys(("begin", "propose", "observe", "accept"), 0.0)
        self._empty: dict[tuple[str, bool], Draft] = {}  # by reason and `is_ready`
        self._has_told = False  # whether a failure of `describe` was logged

    def begin(self, seq_id: int, history: Sequence[int], namespace: str) -> None:
        self.failed.discard(seq_id)
        self.call("begin", seq_id, history, namespace)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One draft per request, of at most `max_tokens`; empty if the speculator failed."""
        # Copied before the call, because a speculator may change the requests.
        asked = [(request.seq_id, request.max_tokens) for request in requests]
        checked, started = [Draft(reason=FAILED, is_ready=False)] * len(asked), self._clock()
        try:
            drafts = listed(self.speculator.propose(requests), len(asked))
            for i, (draft, (seq_id, limit)) in enumerate(zip(drafts, asked, strict=True)):
                try:
                    checked[i] = self._cut(draft, limit)
                except _FAILURES as error:  # disables it for this sequence only
                    self._fail("propose", [seq_id], explained(draft, error))
        except _FAILURES as error:
            self._fail("propose", [seq_id for seq_id, _ in asked], error)
        self.last_seconds = self._clock() - started
        self._seconds["propose"] += self.last_seconds
        return checked

    def _cut(self, draft: Draft, max_tokens: int) -> Draft:
        """Convert a draft to plain numbers and cut it to `max_tokens`, and before an image.

        Raises for invalid token ids and non-finite scores, which would break the batch or corrupt
        control's estimates.
        """
        tokens = list(map(index, draft.tokens[:max_tokens]))
        if not tokens:
            return self._without_tokens(draft.reason, bool(draft.is_ready))
        if min(tokens) < 0 or max(tokens) >= self._vocab_size:
            if SEPARATOR in tokens:  # copied from a text with an image
                return self._cut(draft, tokens.index(SEPARATOR))
            wrong = next(token for token in tokens if not 0 <= token < self._vocab_size)
            raise ValueError(
                f"the draft has token {wrong}, but the ids of the target are 0 to "
                f"{self._vocab_size - 1}; draft only tokens of the text, or of the target's "
                "vocabulary"
            )
        scores = list(map(float, draft.confidence[: len(tokens)]))
        if scores and not (all(map(isfinite, scores)) and min(scores) >= 0.0):
            raise ValueError(
                f"scores {scores} are not all finite and 0 or more; leave confidence out if there "
                "are none"
            )
        scores += [1.0] * (len(tokens) - len(scores))
        return Draft(tokens, scores, self.name)

    def _without_tokens(self, reason: str, is_ready: bool) -> Draft:
        """An empty draft. Its reason is "other" after 64 of them: each is a permanent line of
        /metrics.
        """
        if not isinstance(reason, str):
            raise TypeError(f"reason is {reason!r} but must be a text")
        if (known := self._empty.get((reason, is_ready))) is not None:
            return known
        if len(self._empty) >= 64:
            return Draft(reason="other", is_ready=is_ready)
        made = Draft(reason=plain_text(reason) or "no match", is_ready=is_ready)
        self._empty[reason, is_ready] = made
        return made

    def time_decodes(self, clock: Callable[[], float]) -> tuple[float, float] | None:
        """Milliseconds of a drafting round and of decoding one token; None for text speculators."""
        try:
            prices = self.speculator.time_decodes(clock)
            if prices is None:
                return None
            round_ms, token_ms = map(float, prices)
            if not (0.0 <= round_ms < inf and 0.0 <= token_ms < inf):
                raise ValueError(
                    f"time_decodes returned {prices} but must return finite milliseconds"
                )
            return round_ms, token_ms
        except _FAILURES:
            log.exception(
                "speculator %s failed in time_decodes; its cost is measured later", self.name
            )
            return None

    def observe_states(self, decoded: DecodedStates) -> None:
        """Pass it the decoded rows, except those of sequences for which it is disabled."""
        seq_ids = set(decoded.seq_ids.tolist())
        if not self.failed.isdisjoint(seq_ids):
            kept = ~np.isin(decoded.seq_ids, list(self.failed))
            states = {layer: rows[kept] for layer, rows in decoded.states.items()}
            columns = decoded.seq_ids[kept], decoded.positions[kept], decoded.tokens[kept]
            decoded = DecodedStates(*columns, states)
            seq_ids -= self.failed
        if seq_ids:
            self.call("observe_states", decoded, about=seq_ids)

    def accept(self, texts: Sequence[tuple[int, Sequence[int], int]]) -> None:
        """Report (seq_id, emitted, num_accepted) of each sequence that grew in a step."""
        started, speculator, failed = self._clock(), self.speculator, self.failed
        for seq_id, emitted, num_accepted in texts:
            if seq_id not in failed:
                try:
                    speculator.accept(seq_id, emitted, num_accepted)
                except _FAILURES as error:  # affects this sequence only
                    self._fail("accept", [seq_id], error)
        self._seconds["accept"] += self._clock() - started
        self.call("go_on", about=[seq_id for seq_id, *_ in texts])

    def close(self) -> None:
        """Close the speculator. A failure is logged, so that the others are closed too."""
        try:
            self.speculator.close()
        except _FAILURES:
            log.exception("speculator %s failed in close; its data may not be written", self.name)

    def describe(self) -> dict[str, Any]:
        """Its own description as plain JSON values: sent to another process and shown in /props."""
        try:
            options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
            details = orjson.loads(orjson.dumps(self.speculator.describe(), option=options))
            if not isinstance(details, dict):
                raise TypeError(f"describe() returned {details!r} but must return a dict")
            return details
        except _FAILURES as error:
            if not self._has_told:
                log.exception("speculator %s failed in describe", self.name)
            self._has_told = True
            return {"error": in_words(error)}

    def report(self, stats: SpeculationStats) -> SpeculatorReport:
        """Counts and times since the start; `stats`: counts of its drafts."""
        return SpeculatorReport(
            name=self.name,
            stats=stats,
            seconds=dict(self._seconds),
            failure=self.failure,
            details=self.describe(),
        )

    def call(
        self,
        name: str,
        *arguments: Any,
        about: Collection[int] | None = None,
        otherwise: Any = None,
    ) -> Any:
        """Call its method `name`; if that raises or returns nonsense, disable it for the sequences
        `about` (default: that of the first argument) and return `otherwise`.
        """
        started = self._clock()
        try:
            answer = getattr(self.speculator, name)(*arguments)
            return _READERS[name](answer) if name in _READERS else answer
        except _FAILURES as error:
            self._fail(name, arguments[:1] if about is None else about, error)
            return otherwise
        finally:
            self._seconds[_PHASES.get(name, name)] += self._clock() - started

    def _fail(self, name: str, seq_ids: Collection[int], error: BaseException) -> None:
        """Disable it for `seq_ids`. Called while the exception is handled."""
        self.failed.update(seq_ids)
        failure = f"{name}: {in_words(error)}"
        if not self.failure:
            log.exception(
                "speculator %s is off for the running requests of slots %s, not for others: %s",
                self.name,
                list(seq_ids),
                failure,
            )
        self.failure = failure


def listed(drafts: Iterable[Draft], num_requests: int) -> list[Draft]:
    """The drafts of one call, one for each request.

    Raises:
        TypeError, ValueError: it is not a list, or has the wrong length.
    """
    if not isinstance(drafts, Iterable) or isinstance(drafts, Draft | dict | str):
        raise TypeError(
            f"propose returned {drafts!r:.60} but must return a list of Draft, one per request"
        )
    drafts = list(drafts)
    if len(drafts) != num_requests:
        raise ValueError(
            f"propose returned {len(drafts)} drafts for {num_requests} requests; return one per "
            "request, in the same order, and Draft() where there is no draft"
        )
    return drafts


def explained(draft: object, error: BaseException) -> BaseException:
    """The error for an unusable draft, or a clearer one."""
    if not isinstance(draft, Draft):
        return TypeError(
            f"propose returned {draft!r:.60} where a Draft was expected; return Draft() where "
            "there is no draft"
        )
    if not isinstance(error, TypeError) or not isinstance(draft.reason, str):
        return error
    for name, kind in (("tokens", "ints"), ("confidence", "floats, one per token, or nothing")):
        value = getattr(draft, name)
        if not hasattr(value, "__getitem__") or not hasattr(value, "__len__"):
            return TypeError(f"Draft.{name} is {value!r:.60} but must be a list of {kind}")
    return TypeError(f"{error}: {draft!r:.60} needs ints as tokens and floats as confidence")
