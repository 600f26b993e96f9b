"""What a step's batch holds, how long drafts may be, and what is committed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness import (
    AUTO,
    Model,
    Oracle,
    check,
    fixed,
    make_requests,
    make_scheduler,
    run,
    sequence_of,
    steps,
    submit_all,
)

from headstart.sampling.sampler import Sampler
from headstart.scheduler.batching import limit_drafts, prompt_rows
from headstart.scheduler.policy import make_policy
from headstart.scheduler.sequence import Cells
from headstart.scheduler.step import SequencePlan, StepPlan
from headstart.testing import FakeEngine, LetterVocab
from headstart.types import Batch, CacheKind
from headstart.types.errors import EngineError
from headstart.types.request import Request, SpeculativeParams


@given(st.integers(1, 300), st.integers(64, 2048))
def test_a_step_that_reads_prompts_is_whole_tiles_of_attention(others: int, wanted: int) -> None:
    rows = prompt_rows(others, wanted, 64)
    assert (others + rows) % 64 == 0
    assert rows >= 1
    assert abs(rows - wanted) <= 32


@given(st.integers(0, 300), st.integers(1, 2048))
def test_without_tiles_or_smaller_than_one_every_chunk_is_kept(others: int, wanted: int) -> None:
    assert prompt_rows(others, wanted, 1) == wanted
    assert prompt_rows(others, wanted % 64, 64) == wanted % 64


def limit(num_tokens: int, max_tokens: int, engine: FakeEngine, num_slots: int) -> tuple[int, str]:
    request = Request(request_id="a", prompt=[1] * num_tokens, max_tokens=max_tokens)
    policy = make_policy(SpeculativeParams(), AUTO, ["text"], "")
    sequence = sequence_of(request, cells=Cells(0), policy=policy)
    sequence.begin(engine, LetterVocab())
    answer = SequencePlan(sequence)
    may_draft = limit_drafts(StepPlan(Batch(1), 0.0, [answer]), engine, num_slots)
    assert may_draft == [answer] * (answer.limit > 0)
    return answer.limit, answer.reason


@pytest.mark.parametrize(
    ("num_tokens", "max_tokens", "num_slots", "expected"),
    [
        (8, 5, 1, (4, "")),
        (8, 1, 1, (0, "max_tokens reached")),
        (60, 50, 1, (3, "")),
        (63, 50, 1, (0, "context full")),
        (8, 50, 128, (0, "batch full")),
    ],
)
def test_the_narrowest_bound_holds_and_is_named_where_it_allows_no_draft(
    num_tokens: int, max_tokens: int, num_slots: int, expected: tuple[int, str]
) -> None:
    assert limit(num_tokens, max_tokens, FakeEngine(context_size=64), num_slots) == expected


def test_a_cache_that_takes_nothing_back_allows_no_draft() -> None:
    engine = FakeEngine(cache_kind=CacheKind.CHECKPOINT)
    engine.max_rollback = 0
    assert limit(8, 50, engine, 1) == (0, "memory takes nothing back")


def test_all_rows_of_a_step_are_read_before_speculators_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    sample = Sampler.sample

    def noted(self, logits, position, legal=None):
        log.append("read")
        return sample(self, logits, position, legal)

    class Told(Oracle):
        def accept(self, seq_id: int, emitted: Sequence[int], num_accepted: int) -> None:
            log.append("told")

    monkeypatch.setattr(Sampler, "sample", noted)
    engine, requests = Model(), make_requests(4)
    scheduler = make_scheduler(engine, [Told(engine, requests)], fixed(3), parallel=4)
    submit_all(scheduler, requests)
    most_told = 0
    for _ in steps(scheduler):
        assert log == sorted(log)  # "read" comes before "told"
        most_told = max(most_told, log.count("told"))
        log.clear()
    assert most_told == 4


def test_a_cache_that_cannot_be_cut_ends_its_own_request_only() -> None:
    class Stuck(Model):
        num_cuts = 0

        def rewind(self, seq_id: int, length: int) -> int:
            self.num_cuts += 1
            if self.num_cuts == 9:
                raise EngineError("the sequence cannot be cut")
            return super().rewind(seq_id, length)

    engine, requests = Stuck(), make_requests(6)
    wrong = Oracle(engine, requests, wrong=0.5)  # so that much is cut
    scheduler = make_scheduler(engine, [wrong], fixed(4), parallel=3)
    answers = run(scheduler, requests)
    failed = [r.request_id for r in requests if answers[r.request_id].error]
    assert len(failed) == scheduler.counters.requests_failed == 1
    assert answers[failed[0]].reason == "EngineError"
    check(engine, [r for r in requests if r.request_id not in failed], answers)
