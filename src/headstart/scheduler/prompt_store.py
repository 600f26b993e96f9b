"""Texts whose caches were copied to main memory. Eviction takes the least recently used text of the
tenant with the most bytes. Texts with a common prefix share its blocks.

They are kept in sorted order, too: the one with the longest common prefix with a text is next to
the text's place, so few are compared.

Knows tokens and bytes, no engine: only the caller interprets the bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from headstart.structures.checkpoints import Data
from headstart.structures.prefix import common_prefix_length
from headstart.structures.tenants import tenant_of
from headstart.types import Bytes, SavedState
from headstart.types.media import chunk_begin


@dataclass(frozen=True, slots=True, eq=False)
class StoredBlock:
    """The target's cache for tokens `start` to `end` of a text, see `Engine.save_block`; if it has
    no blocks, for the whole text as returned by `Engine.save_sequence`.
    """

    start: int
    end: int
    data: Data

    @property
    def checkpoints(self) -> list[int]:
        """Lengths of the text with checkpoints."""
        kept = self.data.checkpoints if isinstance(self.data, SavedState) else ()
        return [checkpoint.length for checkpoint in kept]

    @property
    def parts(self) -> list[Bytes]:
        """Its bytes; other blocks may have some of these objects."""
        return self.data.parts if isinstance(self.data, SavedState) else [self.data]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class StoredPrompt:
    """A text and the caches computed for it."""

    namespace: str
    tokens: array[int]  # see `prefix.packed`
    blocks: tuple[StoredBlock, ...]  # in order, without gaps
    num_prompt: int = 0  # tokens of the prompt; those after them are the answer
    last_used: float = 0.0  # seconds since the epoch
    others: Mapping[str, Data] = field(default_factory=dict)  # draft models' caches, by speculator
    is_private: bool = False  # never written to the disk

    @property
    def num_bytes(self) -> int:
        return sum(len(block.data) for block in self.blocks) + self.own_bytes

    @property
    def is_whole(self) -> bool:
        """Whether its cache can only be restored as a whole."""
        return isinstance(self.blocks[0].data, SavedState)

    @property
    def own_bytes(self) -> int:
        """Bytes not shared with other texts."""
        return sum(map(len, self.others.values())) + self.tokens.itemsize * len(self.tokens)

    def known(self, length: int) -> tuple[StoredBlock, ...]:
        """The blocks that end within the first `length` tokens."""
        return self.blocks[: bisect_right(self.blocks, length, key=attrgetter("end"))]


_text_of = attrgetter("namespace", "tokens")


class PromptStore:
    """Stored prompts, up to a limit in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        # called with prompts that are evicted or do not fit
        self.dropped: Callable[[StoredPrompt], object] = lambda prompt: None
        # whether cells continue it, by prompt; the next one to be evicted first
        self._prompts = OrderedDict[StoredPrompt, bool]()
        self._held: Counter[str] = Counter()  # bytes, by tenant
        self._uses = dict[int, int]()  # number of prompts that contain a part, by its id
        self._sorted = list[StoredPrompt]()  # by their texts

    def __len__(self) -> int:
        return len(self._prompts)

    def __iter__(self) -> Iterator[StoredPrompt]:
        """Stored prompts, the last one to be evicted first."""
        return reversed(self._prompts)

    def only_here(self) -> Iterator[StoredPrompt]:
        """Stored prompts that no cells continue, the last one to be evicted first."""
        return (prompt for prompt in self if not self._prompts[prompt])

    def find(self, namespace: str, tokens: array[int]) -> tuple[StoredPrompt | None, int]:
        """The stored prompt with the longest common prefix, and the prefix length. O(tokens)."""
        best: StoredPrompt | None = None
        most, at = 0, bisect_right(self._sorted, (namespace, tokens), key=_text_of)
        for near in self._sorted[max(0, at - 1) : at + 1]:
            is_own = near.namespace == namespace
            num_common = common_prefix_length(near.tokens, tokens) if is_own else 0
            if num_common > most:
                best, most = near, num_common
        return best, chunk_begin(tokens, most)

    def holds(self, namespace: str, tokens: array[int]) -> bool:
        """Whether some stored prompt begins with all of these tokens."""
        return self.find(namespace, tokens)[1] == len(tokens)

    def fits(self, namespace: str, num_bytes: float) -> bool:
        """Whether a prompt may be stored: every other tenant may keep as many bytes as it has."""
        others = (num for one, num in self._held.items() if one != tenant_of(namespace))
        return sum(min(num, num_bytes) for num in others) <= self.max_bytes - num_bytes

    def put(self, prompt: StoredPrompt) -> bool:
        """Store a prompt. Drops prompts that it extends, then evicts the oldest ones of the tenant
        with the most bytes. Returns False if it does not fit.
        """
        if not self.fits(prompt.namespace, prompt.num_bytes):
            self.dropped(prompt)
            return False
        alike, num_common = self.find(prompt.namespace, prompt.tokens)
        if alike is not None and not (prompt.is_whole or alike.is_whole):
            known = {block.end: block for block in alike.known(num_common)}
            blocks = tuple(known.get(block.end, block) for block in prompt.blocks)
            if blocks != prompt.blocks:
                prompt = replace(prompt, blocks=blocks)
        self._count(prompt, 1)  # first: those taken share its blocks
        self.erase(prompt.namespace, prompt.tokens)
        insort(self._sorted, prompt, key=_text_of)
        self._prompts[prompt] = False
        while self.num_bytes > self.max_bytes:
            most = max(self._held, key=self._held.__getitem__)
            oldest = next(one for one in self._prompts if tenant_of(one.namespace) == most)
            if not self.take(oldest):
                self.dropped(oldest)
        return True

    def use(self, prompt: StoredPrompt, *, is_continued: bool = False) -> None:
        """Note that a stored prompt is copied into cells. Once these continue it, it is kept for
        its blocks only, which the continuation shares, and is the next one to be evicted.
        """
        if prompt in self._prompts:
            self._prompts[prompt] = is_continued
            self._prompts.move_to_end(prompt, last=not is_continued)

    def lose(self, namespace: str, tokens: array[int]) -> None:
        """Note that cells that held a text no longer continue what is stored of it."""
        prompt, num_common = self.find(namespace, tokens)
        if prompt is not None and 2 * num_common > prompt.num_prompt:
            self.use(prompt)

    def erase(self, namespace: str, tokens: array[int]) -> None:
        """Remove what is stored of a text: its beginnings, whatever their length."""
        at = bisect_right(self._sorted, (namespace, tokens), key=_text_of)
        while at and (last := self._sorted[at - 1]).namespace == namespace:
            at -= 1
            length = common_prefix_length(last.tokens, tokens)
            if length == len(last.tokens):
                self.take(last)
            else:  # those in between agree at least as far
                at = bisect_right(self._sorted, (namespace, tokens[:length]), 0, at, key=_text_of)

    def take(self, prompt: StoredPrompt) -> bool:
        """Remove a prompt, which must be in the store; returns whether cells continue it."""
        is_continued = self._prompts.pop(prompt)
        self._sorted.remove(prompt)
        self._count(prompt, -1)
        return is_continued

    def _count(self, prompt: StoredPrompt, uses: int) -> None:
        """Add (`uses` 1) or subtract (-1) a prompt; shared blocks and checkpoints count once."""
        num_bytes = uses * prompt.own_bytes
        for part in (part for block in prompt.blocks for part in block.parts):
            before = self._uses.pop(id(part), 0)
            if after := before + uses:
                self._uses[id(part)] = after
            if not (before and after):
                num_bytes += uses * len(part)
        self.num_bytes += num_bytes
        tenant = tenant_of(prompt.namespace)
        self._held[tenant] += num_bytes
        if not self._held[tenant]:
            del self._held[tenant]
