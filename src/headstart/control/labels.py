"""Which draft tokens the text agrees with: offers are followed until their fate is known.

An offer is compared with the text as it appears, whether it was verified or not. So control knows
what a speculator would have earned, also while it is off or outbid, and at draft positions that
were not verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstart.control.values import Outcome

if TYPE_CHECKING:
    from headstart.scheduler.step import Offer, StepRecord


@dataclass(slots=True)
class _Followed:
    """One offer, and how far the text agreed with it."""

    offer: Offer
    num_seen: int = 0  # of `after` and the draft together, all agreeing

    def follow(self, number: int, emitted: tuple[int, ...]) -> tuple[bool, Outcome | None]:
        """Compare further; returns whether the comparison is over, and the outcome of what is newly
        known.

        Bit by bit: a right draft of 32 tokens that was not verified would else be known only 32
        steps later.
        """
        draft, line, after = self.offer.draft, self.offer.line, self.offer.after
        tokens, first = draft.tokens, len(after)
        num_known = num_labelled = max(0, self.num_seen - first)
        is_over = False
        for token in emitted:
            at = self.num_seen - first
            is_right = token == (tokens[at] if at >= 0 else after[self.num_seen])
            self.num_seen += is_right
            num_labelled = max(0, at + 1)
            is_over = not is_right or num_labelled == len(tokens)
            if is_over:
                break
        if num_labelled == num_known:
            return is_over, None
        num_matched, name = max(0, self.num_seen - first), draft.speculator
        outcome = Outcome(
            number, name, draft.confidence, num_matched, num_labelled, num_known, line
        )
        return is_over, outcome


class Labels:
    """The offers of all running requests whose fate is not known."""

    def __init__(self) -> None:
        # by number of the sequence and name of the speculator, one offer at a time
        self._followed: dict[int, dict[str, _Followed]] = {}

    def read(self, record: StepRecord) -> Iterator[Outcome]:
        """What is newly known after a step."""
        plan, all_followed = record.plan, self._followed
        for offer in plan.offers:
            drafts = all_followed.setdefault(plan.sequences[offer.index].number, {})
            if offer.draft.speculator not in drafts:  # an earlier one is still undecided
                drafts[offer.draft.speculator] = _Followed(offer)
        # also the tokens behind a text that was read again
        for sequence, emitted in zip(plan.sequences, record.emitted, strict=True):
            own = all_followed.get(sequence.number, {})
            for name, followed in list(own.items()):
                is_over, outcome = followed.follow(sequence.number, emitted)
                if is_over:
                    del own[name]
                if outcome is not None:
                    yield outcome

    def end(self, number: int) -> None:
        """The request is over: what is undecided of it stays so."""
        self._followed.pop(number, None)
