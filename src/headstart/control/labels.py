"""Which draft tokens the text agrees with: offers are followed until their fate is known.

An offer is compared with the text as it appears, whether it was verified or not. So control knows
what a speculator would have earned, also while it is off or outbid, and at draft positions that
were not verified.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.scheduler.step import Offer, StepRecord


class Labels:
    """The offers of all running requests whose fate is not known."""

    def __init__(self) -> None:
        # By number of the sequence and name of the speculator, one offer at a time: what is
        # expected, that in front of the draft included, and how much of it the text agreed with.
        self._followed: dict[int, dict[str, tuple[Offer, list[int], int]]] = {}

    def read(self, record: StepRecord, label: Callable[..., None]) -> None:
        """Tell what is newly known after a step to `label`, which is `Calibration.record`.

        Bit by bit: a right draft of 32 tokens that was not verified would else be known only 32
        steps later.
        """
        plan, all_followed = record.plan, self._followed
        for offer in plan.offers:
            own = all_followed.setdefault(plan.sequences[offer.index].number, {})
            if offer.draft.speculator not in own:  # an earlier one is still undecided
                own[offer.draft.speculator] = offer, [*offer.after, *offer.draft.tokens], 0
        # also the tokens behind a text that was read again
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
        """The request is over: what is undecided of it stays so."""
        self._followed.pop(number, None)
