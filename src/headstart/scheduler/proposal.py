"""A draft on its way through one step: whose tokens it has, and what became of older guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headstart.control.values import Outcome
from headstart.types import Draft


@dataclass(slots=True, unsafe_hash=True)
class Proposal:
    """What one slot verifies: drafts of one speculator or of several, one behind the other."""

    drafts: tuple[Draft, ...] = ()  # none empty

    @property
    def tokens(self) -> Sequence[int]:
        if len(self.drafts) == 1:
            return self.drafts[0].tokens
        return [token for draft in self.drafts for token in draft.tokens]

    @property
    def sources(self) -> list[str]:
        """The speculator of each token."""
        return [draft.speculator for draft in self.drafts for _ in draft.tokens]

    @property
    def speculators(self) -> list[str]:
        """Whose drafts it holds."""
        return [draft.speculator for draft in self.drafts]

    def __add__(self, other: Proposal) -> Proposal:
        return Proposal(self.drafts + other.drafts)

    def cut(self, length: int) -> Proposal:
        """Only the first `length` tokens."""
        if not length:
            return NO_PROPOSAL
        kept = []
        for draft in self.drafts:
            if length > 0:
                kept.append(_cut(draft, length))
            length -= len(draft.tokens)
        return Proposal(tuple(kept))


NO_PROPOSAL = Proposal()


def _cut(draft: Draft, length: int) -> Draft:
    if length >= len(draft.tokens):
        return draft
    return Draft(draft.tokens[:length], draft.confidence[:length], draft.speculator)


@dataclass(slots=True)
class TrackedDraft:
    """A guess that is compared with the text as it appears, whether it was verified or not.

    So control knows what a speculator would have earned, also while it is off or outbid, and at
    draft positions that were not verified.
    """

    draft: Draft
    tokens: Sequence[int]  # the one before the draft and the draft's
    after: Sequence[int] = ()  # tokens of another draft that come before this one's
    num_seen: int = 0  # of `after` and the draft together, all agreeing

    @property
    def num_matched(self) -> int:
        return max(0, self.num_seen - len(self.after))

    def follow(self, seq_id: int, emitted: Sequence[int]) -> tuple[bool, Outcome | None]:
        """Compare further; returns whether the comparison is over, and the outcome of what is newly
        known.

        Bit by bit: a right draft of 32 tokens that was not verified would else be known only 32
        steps later.
        """
        num_known = self.num_matched
        for token in emitted:
            at = self.num_seen - len(self.after)
            expected = self.draft.tokens[at] if at >= 0 else self.after[self.num_seen]
            if token != expected:
                return True, self._outcome(seq_id, at + 1, num_known) if at >= 0 else None
            self.num_seen += 1
            if at + 1 == len(self.draft.tokens):
                return True, self._outcome(seq_id, at + 1, num_known)
        return False, self._outcome(
            seq_id, self.num_matched, num_known
        ) if self.num_matched > num_known else None

    def _outcome(self, seq_id: int, num_labelled: int, num_known: int) -> Outcome:
        draft = self.draft
        matched = self.num_matched
        return Outcome(
            seq_id,
            draft.speculator,
            draft.confidence,
            matched,
            num_labelled,
            num_known,
            self.tokens,
        )


@dataclass(slots=True)
class DraftTracker:
    """The guesses of one sequence that are being compared with its text, one per speculator."""

    by_name: dict[str, TrackedDraft] = field(default_factory=dict)

    def watch(self, draft: Draft, tokens: Sequence[int], after: Sequence[int] = ()) -> None:
        """Compare this draft, unless an earlier one of this speculator is still undecided.

        tokens: the one before the draft and the draft's.
        """
        if draft.speculator not in self.by_name:
            self.by_name[draft.speculator] = TrackedDraft(draft, tokens, after)

    def follow(self, seq_id: int, emitted: Sequence[int]) -> list[Outcome]:
        """Outcomes that these tokens decided."""
        decided = []
        for name, tracked in list(self.by_name.items()):
            is_over, outcome = tracked.follow(seq_id, emitted)
            if is_over:
                del self.by_name[name]
            if outcome is not None:
                decided.append(outcome)
        return decided
