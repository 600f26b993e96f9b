"""Compares offers with the text until the fate of their tokens is known.

Offers are compared whether they were verified or not. So control knows what a speculator would have
saved even while it is off or outbid, and at positions that were not verified.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.scheduler.step import Offer, StepRecord


class Labels:
    """The undecided offers of all running requests."""

    def __init__(self) -> None:
        # Per sequence and speculator, one pending offer: the expected tokens (including those
        # before the draft) and how many have matched so far.
        self._followed: dict[int, dict[str, tuple[Offer, list[int], int]]] = {}

    def read(self, record: StepRecord, label: Callable[..., None]) -> None:
        """Pass new labels after a step to `label`, which is `Calibration.record`.

        Labels are passed token by token: otherwise an unverified correct draft of 32 tokens would
        be counted only 32 steps later.
        """
        plan, all_followed = record.plan, self._followed
        for offer in plan.offers:
            own = all_followed.setdefault(plan.sequences[offer.index].number, {})
            if offer.draft.speculator not in own:  # otherwise an earlier one is still undecided
                own[offer.draft.speculator] = offer, [*offer.after, *offer.draft.tokens], 0
        # including the first token after a preempted text
        for sequence, emitted in zip(plan.sequences, record.emitted, strict=True):
            own = all_followed.get(sequence.number, {})
            for name, (offer, expected, start) in list(own.items()):
                end = start
                for token in emitted[: len(expected) - start]:
                    if token != expected[end]:
                        break
                    end += 1
                is_wrong = end - start < len(emitted) and end < len(expected)
                if is_wrong or end == len(expected):
                    del own[name]
                else:
                    own[name] = offer, expected, end
                first = len(offer.after)
                known, right = max(0, start - first), max(0, end - first)
                labelled = max(0, end + is_wrong - first)
                if labelled > known:
                    scores, line = offer.draft.confidence, offer.line
                    label(
                        sequence.number,
                        name,
                        scores[known:labelled],
                        right - known,
                        line[known : labelled + 1],
                    )

    def end(self, number: int) -> None:
        """Forget a request that ended, with its undecided offer."""
        self._followed.pop(number, None)
