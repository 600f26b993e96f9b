"""The kinds of caches, and how far back each can take a sequence.

- CUT: every token has cells of its own, so that any tail can go.
- WINDOW: layers with a sliding window reuse the cells of tokens that no later token can see. A
  sequence can be cut where the window that ends there is still held. With --swa-full the kind is
  CUT, but the same holds: a saved state has only the last window, and libllama may reuse the cells
  before it although there are others.
- ROLLBACK: recurrent layers keep one state, and a snapshot after each of the last tokens of one
  decode.
- CHECKPOINT: recurrent layers keep one state.

For all but CUT, checkpoints take a sequence further back, to the lengths where they were made.
"""

from __future__ import annotations

from dataclasses import dataclass

from headstart.types import CacheKind


@dataclass(frozen=True, slots=True)
class CacheRules:
    """What kind of cache a context has."""

    kind: CacheKind
    max_rollback: int  # tokens of one decode that ROLLBACK can drop
    window: int = 0  # tokens that sliding windows see; 0: none
    is_split: bool = False  # each sequence has a cache of its own

    @property
    def is_recurrent(self) -> bool:
        return self.kind in (CacheKind.ROLLBACK, CacheKind.CHECKPOINT)
