"""What a model is asked."""

from __future__ import annotations

import pytest
from tests.harness import Letters, Model

from headstart.sampling import SamplingParams
from headstart.sampling.sampler import Sampler
from headstart.scheduler.draft_plan import DraftPlan, model_requests
from headstart.scheduler.proposal import Proposal
from headstart.scheduler.slot import ActiveRequest
from headstart.scheduler.speculation_policy import SpeculationPolicy
from headstart.types import Draft, DraftMode
from headstart.types.request import Request

AUTO = SpeculationPolicy(DraftMode.AUTO, ("suffix", "draft-model"), 16, 0, 0.0)


def plan(text_draft: list[int], policy: SpeculationPolicy = AUTO) -> DraftPlan:
    request = Request(request_id="r", prompt=[1, 2, 3], sampling=SamplingParams(temperature=0.8))
    active = ActiveRequest(request, submitted=0.0)
    active.sampler = Sampler(request.sampling, Model(), Letters.eog_ids)
    one = DraftPlan(0, active, policy, max_tokens=16)
    if text_draft:
        one.take(
            Proposal((Draft(text_draft, [1.0] * len(text_draft), "suffix"),)),
            [1.0] * len(text_draft),
        )
    return one


def test_a_text_draft_that_is_continued_stands_in_the_runs_own_tokens_while_the_model_drafts() -> (
    None
):
    """So that a step costs what the draft is long, not what the history is."""
    continuing, plain = plan([7, 8]), plan([])
    with model_requests([continuing, plain]) as requests:
        assert [request.tokens for request in requests] == [[1, 2, 3, 7, 8], [1, 2, 3]]
        assert requests[0].tokens is continuing.active.tokens
        assert requests[1].tokens is plain.active.tokens
    assert continuing.active.tokens == plain.active.tokens == [1, 2, 3]


def test_the_history_is_what_it_was_after_a_model_that_raises() -> None:
    continuing = plan([7, 8])
    with pytest.raises(RuntimeError), model_requests([continuing]):
        raise RuntimeError
    assert continuing.active.tokens == [1, 2, 3]


@pytest.mark.parametrize(
    ("n_max", "n_min", "shortest"), [(16, 0, 0), (16, 5, 5), (2, 5, 2), (5, 5, 5)]
)
def test_a_draft_of_the_most_tokens_allowed_is_never_too_short(
    n_max: int, n_min: int, shortest: int
) -> None:
    """A request with n_max below the server's --draft-min still drafts, as at llama-server."""
    one = plan([7] * n_max, SpeculationPolicy(DraftMode.AUTO, ("suffix",), n_max, n_min, 0.0))
    assert one.offer().min_tokens == shortest
    one.settle_on(n_max)
    assert one.active.proposal.tokens == [7] * n_max


def test_a_draft_that_is_too_short_is_told_apart_from_one_that_does_not_pay() -> None:
    for n_min, reason in ((3, "shorter than n_min"), (2, "below break-even")):
        one = plan([7, 8], SpeculationPolicy(DraftMode.AUTO, ("suffix",), 16, n_min, 0.0))
        one.settle_on(0)
        assert one.reason == reason
