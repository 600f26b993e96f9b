"""Texts whose caches were copied to main memory; of the tenant that has most there, the one used
longest ago is dropped first. Texts that begin alike share the blocks of that beginning.

Knows tokens and bytes, no engine: what the bytes mean belongs to whoever put them here.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from headstart.structures.checkpoints import Data, unpack
from headstart.structures.prefix_index import PrefixIndex
from headstart.structures.tenants import tenant_of
from headstart.types.media import chunk_begin


@dataclass(frozen=True, slots=True, eq=False)
class StoredBlock:
    """What the target's cache held of tokens `start` to `end` of a text: see `Engine.save_block`,
    or, where it has no blocks, of the whole text as `Engine.save_sequence` returns it.
    """

    start: int
    end: int
    data: Data


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class StoredPrompt:
    """One text and the caches that were computed for it."""

    namespace: str
    tokens: array[int]  # see `prefix_index.packed`
    blocks: tuple[StoredBlock, ...]  # in order, without gaps
    num_prompt: int = 0  # tokens that were asked; those behind them are the answer
    last_used: float = 0.0  # seconds since the epoch
    others: Mapping[str, Data] = field(default_factory=dict)  # by speculator, of its own cache
    is_private: bool = False  # it is not written to the disk

    @property
    def num_bytes(self) -> int:
        return sum(len(block.data) for block in self.blocks) + self.own_bytes

    @property
    def is_whole(self) -> bool:
        """Whether its cache can only be put back as a whole."""
        return unpack(self.blocks[0].data) is not None

    @property
    def own_bytes(self) -> int:
        """Of what no other text shares."""
        return sum(map(len, self.others.values())) + self.tokens.itemsize * len(self.tokens)

    def known(self, length: int) -> tuple[StoredBlock, ...]:
        """The blocks that end within the first `length` tokens."""
        return tuple(block for block in self.blocks if block.end <= length)


class HostCache:
    """Stored prompts up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        # is shown what finds no room, or no longer
        self.dropped: Callable[[StoredPrompt], object] = lambda prompt: None
        self._prompts: dict[StoredPrompt, None] = {}  # the one used last is the last
        self._held: Counter[str] = Counter()  # bytes, by tenant
        self._uses: Counter[StoredBlock] = Counter()  # prompts that have a block
        self._indexes: defaultdict[str, PrefixIndex[StoredPrompt]] = defaultdict(PrefixIndex)

    def __len__(self) -> int:
        return len(self._prompts)

    def __iter__(self) -> Iterator[StoredPrompt]:
        """The prompts, the one used last first."""
        return reversed(self._prompts)

    def find(self, namespace: str, tokens: array[int]) -> tuple[StoredPrompt | None, int]:
        """A prompt with the longest common prefix, and its length. O(tokens)."""
        if namespace not in self._indexes:
            return None, 0
        prompt, shared = self._indexes[namespace].find(tokens)
        return prompt, chunk_begin(tokens, shared)

    def holds(self, namespace: str, tokens: array[int]) -> bool:
        """Whether some stored prompt begins with all of these tokens."""
        return self.find(namespace, tokens)[1] == len(tokens)

    def num_dropped_for(self, num_bytes: int) -> int:
        """How many prompts would be dropped for one of so many bytes, at least."""
        excess, count = self.num_bytes + num_bytes - self.max_bytes, 0
        for prompt in self._prompts:
            if excess <= 0:
                break
            excess, count = excess - prompt.num_bytes, count + 1
        return count

    def put(self, prompt: StoredPrompt) -> bool:
        """Store a prompt; those that it continues are forgotten, and then the oldest are dropped,
        of the tenant that has most bytes here.

        False if it is larger than the store.
        """
        if prompt.num_bytes > self.max_bytes:
            self.dropped(prompt)
            return False
        alike, num_common = self._indexes[prompt.namespace].find(prompt.tokens)
        if alike is not None and not prompt.is_whole:
            ends = {block.end for block in prompt.blocks}
            known = {one.end: one for one in alike.known(num_common) if one.end in ends}
            blocks = tuple(known.get(block.end, block) for block in prompt.blocks)
            if blocks != prompt.blocks:
                prompt = replace(prompt, blocks=blocks)
        for other in self._indexes[prompt.namespace].beginnings(prompt.tokens):
            self.take(other)
        self._indexes[prompt.namespace].add(prompt.tokens, prompt)
        self._prompts[prompt] = None
        self._count(prompt, 1)
        while self.num_bytes > self.max_bytes:
            most = max(self._held, key=self._held.__getitem__)
            oldest = next(one for one in self._prompts if tenant_of(one.namespace) == most)
            self.take(oldest)
            self.dropped(oldest)
        return True

    def take(self, prompt: StoredPrompt) -> None:
        """Remove a prompt, which must be in the store."""
        del self._prompts[prompt]
        index = self._indexes[prompt.namespace]
        index.remove(prompt.tokens, prompt)
        if index.is_empty:
            del self._indexes[prompt.namespace]
        self._count(prompt, -1)

    def _count(self, prompt: StoredPrompt, uses: int) -> None:
        """One prompt more, or less; a block counts once."""
        num_bytes = uses * prompt.own_bytes
        for block in prompt.blocks:
            if not self._uses[block]:
                num_bytes += len(block.data)
            self._uses[block] += uses
            if not self._uses[block]:
                num_bytes -= len(block.data)
                del self._uses[block]
        self.num_bytes += num_bytes
        tenant = tenant_of(prompt.namespace)
        self._held[tenant] += num_bytes
        if not self._held[tenant]:
            del self._held[tenant]
