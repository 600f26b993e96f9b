"""Past texts, by namespace: finds where else the last tokens occurred.

A namespace sees only its own texts and the public ones (namespace ""). The number of tokens is
bounded: beyond it the largest namespace loses its oldest text, so that a busy tenant evicts its own
texts and not those of others.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from headstart.structures.suffix_index import SEPARATOR, SLICE, SuffixIndex
from headstart.structures.tenants import namespace_id
from headstart.structures.text_store import TextStore
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)

# n-grams that are looked up: short ones for recall, long ones for precision
SIZES = (2, 4, 8)
MAX_MATCH = 16
_key_of = lru_cache(maxsize=1024)(namespace_id)  # needed in every step
_MOST_DROPPED = 32  # texts per step: half a millisecond
_BLOCK = 64  # tokens; granularity at which known prefixes are recognised


def _marks(text: array[int]) -> list[int]:
    """One hash per prefix of the text: of 1, 2, 3 ... blocks, and of the whole text."""
    marks, mark = [], 0
    for start in range(0, len(text), _BLOCK):
        mark = hash((mark, text[start : start + _BLOCK].tobytes()))
        marks.append(mark)
    return marks


class _NamespaceTexts:
    """The texts of one namespace, oldest first."""

    def __init__(self) -> None:
        self.index = SuffixIndex(SIZES, MAX_MATCH, 0)
        self._next: SuffixIndex | None = None  # replaces `index` once complete
        self._next_start = 0  # its start in `index`
        # live texts: start in the index, hashes that it added to `known`, and row in the file
        self.texts = deque[tuple[int, list[int], int | None]]()
        self.known: set[int] = set()

    @property
    def num_tokens(self) -> int:
        """Tokens of live texts, each with a separator."""
        return len(self.index) - self.index.floor

    @property
    def num_bytes(self) -> int:
        """Bytes of its indexes; 0 without texts, because it is dropped then."""
        if not self.texts:
            return 0
        return self.index.num_bytes + (self._next.num_bytes if self._next else 0)

    def unknown_part(self, text: array[int], marks: list[int]) -> tuple[array[int], int]:
        """The text after its known prefix, preceded by as much of that as a match may need, and its
        hash. Empty if nothing is new.

        Every turn of a chat repeats the previous turns, which are stored once.
        """
        num_known = next((i for i, mark in enumerate(marks) if mark not in self.known), None)
        if num_known is None:
            return array("i"), 0
        part = text[max(0, num_known * _BLOCK - MAX_MATCH) :]
        mark = _marks(part)[-1] if num_known else marks[-1]
        return (array("i"), 0) if mark in self.known else (part, mark)

    def add(self, text: array[int], marks: list[int], row: int | None) -> None:
        new = [mark for mark in marks if mark not in self.known]
        self.known.update(new)
        self.texts.append((len(self.index), new, row))
        self.index.tokens.extend(text + array("i", (SEPARATOR,)))

    def drop_oldest(self) -> int | None:
        """Drop the oldest text; returns its row in the file, if it has one."""
        _, marks, row = self.texts.popleft()
        self.known.difference_update(marks)
        self.index.floor = self.texts[0][0] if self.texts else len(self.index)
        return row

    def go_on(self, num_tokens: int) -> bool:
        """Link `num_tokens` tokens of the index; returns False if nothing is left to do.

        If the index is crowded, or holds mostly dropped texts, a new one is built, which replaces
        it once complete.
        """
        index = self.index
        num_tokens += index.floor // 512  # ensures progress however fast texts come and go
        if self._next is None and (index.is_crowded or index.floor > len(index) // 2):
            self._next = SuffixIndex(SIZES, MAX_MATCH, 2 * self.num_tokens)
            self._next_start = index.floor
        if self._next is None:
            index.link(num_tokens)
            return index.num_linked < len(index)
        if not self._next.prepare():
            return True
        start = self._next_start + len(self._next)
        self._next.tokens.extend(index.tokens[start : start + num_tokens])
        self._next.link(num_tokens)
        if start + num_tokens >= len(index):
            self.index, self._next, dropped = self._next, None, self._next_start
            self.index.floor = index.floor - dropped
            self.texts = deque((at - dropped, marks, row) for at, marks, row in self.texts)
        return True


class SuffixCorpus:
    """Texts that speculation may copy from.

    Args:
        capacity: maximum number of tokens, over all namespaces.
        store: their file on disk; its texts are read now, and `close` closes it.

    Raises (constructor):
        ConfigError: the store holds far more than `capacity`.
    """

    def __init__(self, capacity: int = 2_000_000, store: TextStore | None = None) -> None:
        self._capacity = capacity
        self._texts: dict[bytes, _NamespaceTexts] = {}
        self._sizes = list[tuple[int, bytes]]()  # tokens and namespace, the largest last
        self.unfinished: dict[bytes, None] = {}  # with unlinked tokens, the next first
        self.num_tokens = self.num_texts = self.num_bytes = 0  # over all namespaces
        self._store: TextStore | None = None
        if store is not None:
            self._load(store)

    def _load(self, store: TextStore) -> None:
        texts, store.texts = store.texts, []
        if (num_tokens := sum(len(tokens) for *_, tokens in texts)) > 2 * self._capacity:
            store.close()
            raise ConfigError(
                f"corpus {store.path} holds {num_tokens} tokens but "
                "--spec-suffix-corpus-tokens is "
                f"{self._capacity}, so most would be lost; raise it, or name another file"
            )
        self._store = store
        for row, namespace, tokens in texts:
            if not self._add(namespace, tokens, row):
                store.drop([row])
        while self.unfinished:
            self.go_on(self._capacity)

    def add(self, tokens: Sequence[int], namespace: str = "", *, is_private: bool = False) -> bool:
        """Add a text, writing it to the file unless private; returns False if it was known."""
        text = array("i", tokens)[max(0, len(tokens) - self._capacity + 1) :]
        return self._add(_key_of(namespace), text, is_private=is_private)

    def _add(
        self, key: bytes, text: array[int], row: int | None = None, *, is_private: bool = False
    ) -> bool:
        """Add a text, which may already have a row in the file."""
        marks = _marks(text)
        texts = self._texts.get(key) or _NamespaceTexts()
        part, mark = texts.unknown_part(text, marks)
        if not part:
            return False
        if row is None and not is_private and self._store is not None:
            try:
                row = self._store.add(key, part)
            except OSError as error:
                self._give_up(self._store, error)
        self._texts[key] = texts
        with self._counted(key):
            texts.add(part, [*marks, mark], row)
        self.unfinished[key] = None
        self._make_room()
        return True

    def go_on(self, num_tokens: int = SLICE) -> None:
        """Link some of the added tokens, one namespace after another, and make room. Call it in
        every step: long texts are found at once, but quickly only once they are linked.
        """
        key = next(iter(self.unfinished), None)
        if key is None:
            return
        del self.unfinished[key]
        if key in self._texts:
            with self._counted(key) as texts:
                if texts.go_on(num_tokens):
                    self.unfinished[key] = None
        self._make_room()

    def _make_room(self) -> None:
        """Drop some texts if there are too many tokens; `go_on` drops the rest."""
        rows: list[int] = []
        for _ in range(_MOST_DROPPED):
            if self.num_tokens <= self._capacity:
                break
            _, key = self._sizes[-1]
            with self._counted(key) as texts:
                row = texts.drop_oldest()
            rows += () if row is None else (row,)
            self.unfinished[key] = None
            if not texts.texts:
                del self._texts[key]
        if rows and self._store is not None:
            try:
                self._store.drop(rows)
            except OSError as error:
                self._give_up(self._store, error)

    @contextmanager
    def _counted(self, key: bytes) -> Iterator[_NamespaceTexts]:
        """Keep totals and sizes right while this namespace changes."""
        texts = self._texts[key]
        before = (texts.num_tokens, len(texts.texts), texts.num_bytes)
        yield texts
        if (num_tokens := texts.num_tokens) != before[0]:
            self.num_tokens += num_tokens - before[0]
            if before[0]:
                del self._sizes[bisect_left(self._sizes, (before[0], key))]
            if num_tokens:
                insort(self._sizes, (num_tokens, key))
        self.num_texts += len(texts.texts) - before[1]
        self.num_bytes += texts.num_bytes - before[2]

    def _give_up(self, store: TextStore, error: OSError) -> None:
        log.error("corpus file %s is not written any more: %s", store.path, error)
        self.close()

    def indexes(self, namespace: str) -> list[SuffixIndex]:
        """The indexes that a namespace may see: its own, then the public one."""
        texts, keys = self._texts, dict.fromkeys((_key_of(namespace), _key_of("")))
        return [texts[key].index for key in keys if key in texts]

    def close(self) -> None:
        """Flush and close the file; the texts stay usable."""
        store, self._store = self._store, None
        if store is not None:
            store.close()
