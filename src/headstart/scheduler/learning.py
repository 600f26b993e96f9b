"""What control learns of a step: what its decode cost, and what became of every draft offered."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.control.values import Outcome
from headstart.scheduler.drafting import Drafting
from headstart.scheduler.step import Offer, StepPlan, StepRecord


@dataclass(slots=True)
class _Followed:
    """An offer that is compared with the text as it appears, whether it was verified or not.

    So control knows what a speculator would have earned, also while it is off or outbid, and at
    draft positions that were not verified.
    """

    offer: Offer
    num_seen: int = 0  # of `after` and the draft together, all agreeing

    @property
    def num_matched(self) -> int:
        return max(0, self.num_seen - len(self.offer.after))

    def follow(self, number: int, emitted: tuple[int, ...]) -> tuple[bool, Outcome | None]:
        """Compare further; returns whether the comparison is over, and the outcome of what is newly
        known.

        Bit by bit: a right draft of 32 tokens that was not verified would else be known only 32
        steps later.
        """
        num_known, after, tokens = self.num_matched, self.offer.after, self.offer.draft.tokens
        for token in emitted:
            at = self.num_seen - len(after)
            expected = tokens[at] if at >= 0 else after[self.num_seen]
            if token != expected:
                return True, self._outcome(number, at + 1, num_known) if at >= 0 else None
            self.num_seen += 1
            if at + 1 == len(tokens):
                return True, self._outcome(number, at + 1, num_known)
        num_matched = self.num_matched
        is_news = num_matched > num_known
        return False, self._outcome(number, num_matched, num_known) if is_news else None

    def _outcome(self, number: int, num_labelled: int, num_known: int) -> Outcome:
        draft = self.offer.draft
        return Outcome(
            number,
            draft.speculator,
            draft.confidence,
            self.num_matched,
            num_labelled,
            num_known,
            self.offer.line,
        )


class Learning:
    """Tells control what a record says."""

    def __init__(self, drafting: Drafting) -> None:
        self._drafting, self._controller = drafting, drafting.controller
        # by number of the sequence and name of the speculator, one offer at a time
        self._followed: dict[int, dict[str, _Followed]] = {}

    def read(self, record: StepRecord) -> None:
        """Learn from one step."""
        if self._drafting.failure:
            return
        try:
            self._learn(record)
        except Exception as error:
            self._drafting.fail(error)

    def _learn(self, record: StepRecord) -> None:
        plan, controller = record.plan, self._controller
        self._learn_calls(plan)
        if record.num_rows:
            controller.observe_step(
                record.num_computed, record.context, record.target_ms, is_exact=record.is_exact
            )
        for offer in plan.offers:
            drafts = self._followed.setdefault(plan.sequences[offer.index].number, {})
            if offer.draft.speculator not in drafts:  # an earlier one is still undecided
                drafts[offer.draft.speculator] = _Followed(offer)
        for index, sequence in enumerate(plan.sequences):
            if sequence.policy.reason:
                continue
            number = sequence.number
            if index < plan.num_generating:  # control was told of it, even if it was not decoded
                self._followed.setdefault(number, {})
            # also the tokens behind a text that was read again
            if (emitted := record.emitted[index]) and (own := self._followed.get(number)):
                self._follow(number, own, emitted)
        for end in record.left:
            number = end.sequence.number
            if self._followed.pop(number, None) is not None:
                controller.end(number, end.stats.num_emitted)

    def _follow(self, number: int, drafts: dict[str, _Followed], emitted: tuple[int, ...]) -> None:
        for name, followed in list(drafts.items()):
            is_over, outcome = followed.follow(number, emitted)
            if is_over:
                del drafts[name]
            if outcome is not None:
                self._controller.record(outcome)

    def _learn_calls(self, plan: StepPlan) -> None:
        """What the speculators took, and what asking them is expected to save."""
        if plan.price is None:
            return
        for call in plan.calls:
            if call.run is not None:
                self._controller.observe_draft(call.run, plan.price)
        texts = [call for call in plan.calls if not call.is_model]
        if not texts or plan.asking_ms <= 0.0:
            return
        saved = plan.saved_ms or [0.0] * plan.num_generating
        earned = [
            (
                call.speculator,
                plan.sequences[index].number,
                saved[index] * (call.speculator in plan.sources[index][: plan.lengths[index]]),
            )
            for call in texts
            for index in call.indices
        ]
        own_ms = {call.speculator: call.milliseconds / len(call.indices) for call in texts}
        self._controller.observe_asking(earned, plan.asking_ms, plan.price, own_ms)
