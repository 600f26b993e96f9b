"""What is done with the rows of a batch, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.harness import Model, Oracle, check, fixed, make_requests, make_scheduler, run

from headstart.sampling.sampler import Sampler
from headstart.types.errors import EngineError


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
    for request in requests:
        scheduler.submit(request)
    most_told = 0
    while scheduler.has_work:
        log.clear()
        scheduler.step()
        assert log == sorted(log)  # "read" comes before "told"
        most_told = max(most_told, log.count("told"))
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
