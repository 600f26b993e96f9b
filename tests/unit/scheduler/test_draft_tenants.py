"""A draft model's cache in main memory is of one tenant, as the prompt that it is kept beside."""

from __future__ import annotations

from dataclasses import replace

from tests.harness import Model, make_scheduler, make_speculators
from tests.unit.scheduler.conversations import ask, conversation

from headstart.speculators.draft_model import DraftModelSpeculator


def test_a_draft_models_cache_is_kept_beside_no_prompt_of_another_tenant() -> None:
    """Of a request that ends at its first token the draft model is told nothing."""
    speculators = make_speculators(["draft-model"], lambda: Model(skew=0.2))
    scheduler = make_scheduler(Model(), speculators, parallel=1)
    short = replace(conversation(2, namespace="b"), max_tokens=1)
    ask(scheduler, conversation(1, namespace="a"), short, conversation(3, namespace="c"))
    kept = {stored.namespace: dict(stored.others) for stored in scheduler.cache.host.store}
    assert kept["a"].keys() == {"draft-model"}
    assert not kept["b"]


def test_a_restored_draft_cache_is_its_tenants_also_if_the_request_is_cancelled() -> None:
    speculators = make_speculators(["draft-model"], lambda: Model(skew=0.2))
    scheduler = make_scheduler(Model(), speculators, parallel=1)
    speculator = speculators[0]
    assert isinstance(speculator, DraftModelSpeculator)
    ask(scheduler, conversation(1, namespace="a"), conversation(2, namespace="b"))
    again = conversation(1, 1, namespace="a")
    scheduler.submit(again)
    scheduler.plan()
    assert scheduler.counters.prompts_restored == 1
    scheduler.cancel(again.request_id)
    before = speculator.num_decoded
    ask(scheduler, replace(conversation(1, namespace="b"), request_id="stranger"))
    assert speculator.num_decoded - before >= 100
