"""pip install pytest, then: python -m pytest examples/speculator."""

from headstart_frequent import FrequentSpeculator
from headstart_recall import RecallSpeculator

from headstart.testing import check_speculator
from headstart.types import DraftRequest


def test_each_keeps_the_contract_and_changes_no_text() -> None:
    """Checked call by call, then on a fake model."""
    for kind in (FrequentSpeculator, RecallSpeculator):
        drafted, accepted = check_speculator(kind)
        assert drafted > accepted > 0


def test_it_drafts_what_followed_most_often() -> None:
    """And says how likely that is."""
    speculator, text = FrequentSpeculator(FrequentSpeculator.Options(size=1)), [1, 2, 1, 3, 1, 2, 1]
    speculator.begin(0, text)
    (draft,) = speculator.propose([DraftRequest(0, text, max_tokens=1)])
    assert draft.tokens == [2]
    assert draft.confidence == [0.5]  # twice of three times, and one more in doubt
