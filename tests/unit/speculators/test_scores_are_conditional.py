"""A draft's scores are each token's own: no speculator multiplies along the draft."""

from __future__ import annotations

import pytest
from tests.harness import make_speculators

from headstart.testing import FakeEngine
from headstart.types import DraftRequest

# what follows was seen many times, so each token given those before it is as sure as the first
LOOP = [1, 2, 3, 4, 5, 6, 7, 8] * 40


@pytest.mark.parametrize(
    "name", ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "suffix"]
)
def test_scores_do_not_fall_along_a_draft_that_is_as_sure_at_its_end(name: str) -> None:
    (speculator,) = make_speculators([name], FakeEngine)
    speculator.begin(0, LOOP)
    (draft,) = speculator.propose([DraftRequest(0, LOOP, 6)])
    assert len(draft.tokens) >= 4
    assert all(b >= 0.99 * a for a, b in zip(draft.confidence, draft.confidence[1:], strict=False))
