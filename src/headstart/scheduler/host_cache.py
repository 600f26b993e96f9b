"""Texts whose caches were copied to main memory; of the tenant that has most there, the one used
longest ago is dropped first.

Knows tokens and bytes, no engine: what the bytes mean belongs to whoever put them here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headstart.structures.prefix import common_prefix_length
from headstart.structures.tenants import tenant_of
from headstart.types.media import chunk_begin

Data = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class StoredPrompt:
    """One text and the caches that were computed for it."""

    namespace: str
    tokens: Sequence[int]
    data: Mapping[str, Data]  # by model: the target's and those of speculators
    num_prompt: int = 0  # tokens that were asked; those behind them are the answer

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.data.values())) + 8 * len(self.tokens)


class HostCache:
    """Stored prompts up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._prompts: list[StoredPrompt] = []  # the one used last is the last

    def __len__(self) -> int:
        return len(self._prompts)

    def find(self, namespace: str, tokens: Sequence[int]) -> tuple[StoredPrompt | None, int]:
        """The prompt with the longest common prefix, and its length. O(prompts + prefix)."""
        best, longest = None, 0
        for prompt in self._prompts:
            if prompt.namespace == namespace:
                shared = chunk_begin(tokens, common_prefix_length(prompt.tokens, tokens))
                if shared > longest:
                    best, longest = prompt, shared
        return best, longest

    def holds(self, namespace: str, tokens: Sequence[int]) -> bool:
        """Whether some stored prompt begins with all of these tokens."""
        return self.find(namespace, tokens)[1] == len(tokens)

    def latest(self, count: int) -> list[StoredPrompt]:
        """At most so many prompts, the one used last first."""
        return self._prompts[::-1][:count]

    def num_dropped_for(self, num_bytes: int) -> int:
        """How many prompts would be dropped for one of so many bytes, at least."""
        excess, count = self.num_bytes + num_bytes - self.max_bytes, 0
        for prompt in self._prompts:
            if excess <= 0:
                break
            excess, count = excess - prompt.num_bytes, count + 1
        return count

    def put(self, prompt: StoredPrompt) -> bool:
        """Store a prompt; those that it continues are dropped, and then the oldest ones.

        False if it is larger than the store.
        """
        if prompt.num_bytes > self.max_bytes:
            return False
        for other in list(self._prompts):
            if other.namespace == prompt.namespace and _begins(prompt.tokens, other.tokens):
                self.take(other)
        self._prompts.append(prompt)
        self.num_bytes += prompt.num_bytes
        while self.num_bytes > self.max_bytes:
            self.take(self._surplus())
        return True

    def _surplus(self) -> StoredPrompt:
        """The oldest prompt of the tenant that has most bytes here."""
        held: Counter[str] = Counter()
        for prompt in self._prompts:
            held[tenant_of(prompt.namespace)] += prompt.num_bytes
        most = max(held, key=held.__getitem__)
        return next(one for one in self._prompts if tenant_of(one.namespace) == most)

    def take(self, prompt: StoredPrompt) -> None:
        """Remove a prompt, which must be in the store."""
        self._prompts.remove(prompt)
        self.num_bytes -= prompt.num_bytes


def _begins(tokens: Sequence[int], beginning: Sequence[int]) -> bool:
    length = common_prefix_length(tokens, beginning)
    return length == len(beginning)
