"""The draft model's cache of each sequence, and its draft in progress."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headstart.structures.prefix import common_prefix_length
from headstart.text.vocabulary.draft_tokenizer import DraftBuilder, DraftTokenizer
from headstart.types import Draft, DraftRequest

# at least the first tokens are decoded if the middle of a text is skipped: models rely on them
# whatever they are (Xiao et al. 2023, "attention sinks", https://arxiv.org/abs/2309.17453)
FIRST = 4


@dataclass(slots=True)
class CachedSequence:
    """One sequence in the draft model's cache, in the draft model's own tokens.

    tokens[0 : synced]       equal the history, apart from the gap
    tokens[synced : ]        drafted earlier; compared with the history before they are used
    """

    tokenizer: DraftTokenizer
    tokens: list[int] = field(default_factory=list)
    namespace: str = ""  # owner of the tokens
    synced: int = 0
    num_history: int = 0  # accepted target tokens of the history
    # of these, passed to the tokenizer, which may also have got a rejected draft
    num_translated: int = 0
    gap: range = range(0)  # tokens of the history that the cache skips
    num_caught_up: int = 0  # tokens of the history in the cache; estimated for other vocabularies
    num_kept: int = 0  # the same in the kept state, if the cache cannot be truncated
    kept: int = 0  # tokens in the kept state
    prompt: Sequence[int] = ()  # target tokens, until they are decoded and a draft is made
    is_new: bool = True  # others may hold more of its prompt
    last_used: int = 0  # number of the last call
    start: int = 0  # start of the last draft: beyond the history if it continued another's
    last: DraftBuilder | None = None  # the last draft
    is_open: bool = False
    # the draft in progress
    builder: DraftBuilder = field(init=False)
    num_catch_up: int = 0  # tokens of the history that the cache lacks
    num_settled: int = 0  # tokens of the history that stay, whatever is accepted
    pending: list[int] = field(default_factory=list)  # to decode next

    @property
    def request(self) -> DraftRequest:
        return self.builder.request

    def hold(self, tokens: list[int]) -> None:
        """Set the tokens in the cache; drops the kept state."""
        self.tokens, self.kept, self.num_kept, self.gap = tokens, 0, 0, range(0)
        self.synced = self.num_caught_up = len(tokens)

    def count_held(self) -> None:
        """After an incomplete decode: at most what the cache holds or skips is caught up."""
        self.num_caught_up = min(self.num_caught_up, len(self.tokens) + len(self.gap))

    def without_gap(self, history: Sequence[int]) -> Sequence[int]:
        """The history that the cache should hold; a copy if something is skipped."""
        gap = self.gap
        return [*history[: gap.start], *history[gap.stop :]] if gap else history

    def skip_middle(self, history: Sequence[int], room: int) -> None:
        """If more than twice `room` tokens have to be decoded, skip all but `room` of them: those
        between the ones in the cache (or the first few) and the last ones.
        """
        held = common_prefix_length(self.tokens, self.without_gap(history), self.synced)
        if len(history) - len(self.gap) - held <= 2 * room:
            return
        start = self.gap.start if self.gap else max(held, min(FIRST, room // 2))
        num_recent = room - max(0, start - held)
        # skipped tokens are settled: the history may shrink to its first num_history tokens
        stop = min(len(history) - num_recent, self.num_history - 1)
        if stop > start:
            self.gap, self.synced = range(start, stop), min(self.synced, start)

    @property
    def is_active(self) -> bool:
        return self.builder.has_room and bool(self.pending)

    def extend(self, logits: NDArray[np.float32]) -> None:
        """Pick the next token from the row after the last one, or end the draft."""
        token = self.builder.extend(logits)
        self.pending = [] if token is None else [token]

    def finish(self) -> Draft:
        """The finished draft."""
        draft = self.builder.to_draft("draft model is unsure")
        # all but the last draft token are in the cache if accepted
        self.num_caught_up += max(0, len(draft.tokens) - 1)
        return draft

    def accept(self, emitted: Sequence[int], num_accepted: int, *, takes_back: bool) -> None:
        """The text grew by these tokens; those in the cache need not be decoded again.

        takes_back: rejected tokens can be removed from the cache.
        """
        offset = self.start - self.num_history  # tokens of the draft that this one continued
        num_right = num_accepted  # of the decoded ones; others may have drafted the accepted ones
        if self.last is not None and offset <= num_accepted:
            num_right = min(num_right, offset + self.last.num_right(emitted[offset:]))
        num_known = min(self.num_caught_up, self.num_history + num_right)
        if not takes_back and num_known < self.num_caught_up:
            num_known = min(num_known, self.num_kept)
        self.num_caught_up = num_known
        self.num_history += len(emitted)
        if self.last is not None and offset <= num_accepted:
            self.last.learn(emitted[offset:])
        self.last = None


def closed_half(sequences: Mapping[int, CachedSequence], busy: Collection[int]) -> list[int]:
    """The less recently used half of the closed, non-empty sequences."""
    closed = [
        seq_id
        for seq_id, sequence in sequences.items()
        if not sequence.is_open and sequence.tokens and seq_id not in busy
    ]
    closed.sort(key=lambda seq_id: sequences[seq_id].last_used)
    return closed[: (len(closed) + 1) // 2]
