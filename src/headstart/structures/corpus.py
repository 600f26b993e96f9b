"""Texts of the past, by namespace: where else did the last tokens occur?

A namespace sees its own texts, the public ones (namespace "") and the added files, nothing else.
Memory is bounded by tokens: when they are too many, the namespace that holds most loses its oldest
text, so a busy tenant forgets its own texts and not those of others. Added files go last: somebody
chose them, and no traffic pushes them out.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from headstart.structures.rolling import namespace_id
from headstart.structures.suffix_index import SEPARATOR, SuffixIndex
from headstart.structures.token_log import Record, TokenLog, VocabularyId
from headstart.types.errors import ConfigError

log = logging.getLogger(__name__)

# n-grams that are looked up: short ones for reach, long ones for the better place
SIZES = (2, 4, 8)
MAX_MATCH = 16
_key_of = lru_cache(maxsize=1024)(namespace_id)  # asked for in every step
_PUBLIC = _key_of("")
# key of the added files; a namespace's hash is as unlikely to equal it as the zeros
_FILES = b"\xff" * 16
_BLOCK = 64  # tokens; how finely known beginnings are told
# Tokens that are moved to a new index or file when a text is added, besides twice its own: 16,384
# take about 3 ms.
_SLICE = 16_384


def _marks(text: array[int]) -> list[int]:
    """One hash per beginning of the text: of 1, 2, 3 ... blocks, and of all of it."""
    marks, mark = [], 0
    for start in range(0, len(text), _BLOCK):
        mark = hash((mark, text[start : start + _BLOCK].tobytes()))
        marks.append(mark)
    return marks


@dataclass(frozen=True, slots=True)
class KeptText:
    """A text, by where it begins and ends among all tokens that its namespace ever added.

    It holds no index: that would keep a large one alive after it was replaced.
    """

    key: bytes
    start: int
    end: int


class CorpusPart(NamedTuple):
    """Some of the texts that a namespace may see."""

    tokens: bytes  # int32, a SEPARATOR behind each text
    places: tuple[int, ...]  # up to where each of its indexes was read, over all tokens ever added
    is_complete: bool  # nothing is left


class _NamespaceTexts:
    """The texts of one namespace, oldest first."""

    def __init__(self, num_before: int) -> None:
        """`num_before` is at least the number of tokens that this namespace ever held."""
        # the first token in the index, counted over all that came and went
        self.num_before = num_before
        self.index = SuffixIndex(SIZES, MAX_MATCH, 0)
        self._next: SuffixIndex | None = None  # replaces `index` when it holds as much
        self._next_start = 0  # where it begins in `index`
        self.starts: deque[int] = deque()  # of the live texts in the index
        self.marks: deque[list[int]] = deque()  # that each of them added to `known`
        self.known: set[int] = set()

    @property
    def num_tokens(self) -> int:
        """Of live texts, a separator after each."""
        return len(self.index) - self.index.floor

    @property
    def num_bytes(self) -> int:
        """Of its indexes; 0 without texts, because it is forgotten then."""
        if not self.starts:
            return 0
        return self.index.num_bytes + (self._next.num_bytes if self._next else 0)

    def unknown_part(self, text: array[int], marks: list[int]) -> array[int]:
        """The text after its known beginning, with as much of that as a match may need.

        Every turn of a chat repeats the turns before it: they are held once.
        """
        num_known = next((i for i, mark in enumerate(marks) if mark not in self.known), None)
        if num_known is None:
            return array("i")
        part = text[max(0, num_known * _BLOCK - MAX_MATCH) :]
        return array("i") if _marks(part)[-1] in self.known else part

    def add(self, text: array[int], marks: list[int]) -> None:
        new = [mark for mark in marks if mark not in self.known]
        self.known.update(new)
        self.marks.append(new)
        self.starts.append(len(self.index))
        self.index.extend(text + array("i", (SEPARATOR,)))

    def drop_oldest(self) -> None:
        self.starts.popleft()
        self.known.difference_update(self.marks.popleft())
        self.index.floor = self.starts[0] if self.starts else len(self.index)

    def tidy(self, num_tokens: int) -> None:
        """Where the index is crowded, or mostly of dropped texts: copy so many tokens of it to a
        new one, which replaces it when it has all.
        """
        index = self.index
        if self._next is None:
            if not index.is_crowded and index.floor <= len(index) // 2:
                return
            self._next = SuffixIndex(SIZES, MAX_MATCH, 2 * self.num_tokens)
            self._next_start = index.floor
        start = self._next_start + len(self._next)
        self._next.extend(index.tokens[start : start + num_tokens])
        if start + num_tokens >= len(index):
            self.index, self._next, dropped = self._next, None, self._next_start
            self.index.floor = index.floor - dropped
            self.num_before += dropped
            self.starts = deque(start - dropped for start in self.starts)

    def kept(self, key: bytes) -> list[KeptText]:
        """Where the live texts are; `key` is that of the namespace."""
        edges = [self.num_before + start for start in (*self.starts, len(self.index))]
        return [KeptText(key, start, end) for start, end in pairwise(edges)]


class SuffixCorpus:
    """Texts that speculation may copy from.

    Args:
        capacity: most tokens held, over all namespaces.
        token_log: where they are kept on disk; its records are read now, and it is closed here.
    """

    def __init__(self, capacity: int = 2_000_000, token_log: TokenLog | None = None) -> None:
        self._capacity = capacity
        self._texts: dict[bytes, _NamespaceTexts] = {}
        self._num_added = 0  # tokens ever
        self._num_tokens = self.num_texts = self.num_bytes = 0  # of all namespaces
        self._log: TokenLog | None = None
        if token_log is not None:
            self._check_size(token_log)
            for record in token_log.take_records():
                self._add(record.namespace, record.tokens)
            self._log = token_log
            if 2 * self.num_file_tokens > capacity:
                log.warning(
                    "added files take %d of the %d tokens that corpus %s keeps, which leaves "
                    "little for answers; "
                    "raise --spec-suffix-corpus-tokens",
                    self.num_file_tokens,
                    capacity,
                    token_log.path,
                )

    def _check_size(self, token_log: TokenLog) -> None:
        """A file grows to twice the capacity and one text; one with more was kept for a larger
        corpus.
        """
        if (num_tokens := token_log.num_tokens) > 3 * self._capacity:
            token_log.close()
            raise ConfigError(
                f"corpus {token_log.path} holds {num_tokens} tokens but "
                "--spec-suffix-corpus-tokens is "
                f"{self._capacity}, so most would be lost; raise it, or name another file"
            )

    @classmethod
    def open(
        cls,
        path: Path,
        vocabulary: VocabularyId,
        capacity: int = 2_000_000,
        *,
        keeps_damaged: bool = False,
    ) -> SuffixCorpus:
        """Open or create a corpus on disk; see `TokenLog`.

        Raises:
            ConfigError: it holds far more than `capacity`; else as `TokenLog`.
        """
        return cls(capacity, TokenLog(path, vocabulary, keeps_damaged=keeps_damaged))

    def __len__(self) -> int:
        return self._num_tokens

    @property
    def num_file_tokens(self) -> int:
        """Of added files."""
        return self._texts[_FILES].num_tokens if _FILES in self._texts else 0

    def add(self, tokens: Sequence[int], namespace: str = "") -> bool:
        """Keep a text; False if it was known."""
        return self._add(_key_of(namespace), self._fitting(tokens))

    def add_file(self, tokens: Sequence[int]) -> bool:
        """Keep a text that all namespaces see and that goes last; False if it was added before."""
        return self._add(_FILES, self._fitting(tokens))

    def _fitting(self, tokens: Sequence[int]) -> array[int]:
        text = array("i", tokens)
        return text[max(0, len(text) - self._capacity + 1) :]

    def _add(self, key: bytes, text: array[int]) -> bool:
        marks = _marks(text)
        texts = self._texts.get(key) or _NamespaceTexts(self._num_added)
        part = texts.unknown_part(text, marks)
        if not part:
            return False
        self._texts[key] = texts
        num_moved = 2 * len(part) + _SLICE
        with self._counted(texts):
            texts.add(part, [*marks, _marks(part)[-1]])
            texts.tidy(num_moved)
        self._num_added += len(part) + 1
        self._make_room(num_moved)
        if self._log is not None:
            self._write(self._log, Record(key, part), num_moved)
        return True

    def _make_room(self, num_moved: int) -> None:
        thinned: dict[bytes, _NamespaceTexts] = {}
        while self._num_tokens > self._capacity:
            key, texts = max(
                self._texts.items(), key=lambda item: (item[0] != _FILES, item[1].num_tokens)
            )
            with self._counted(texts):
                texts.drop_oldest()
            thinned[key] = texts
            if not texts.starts:
                del self._texts[key], thinned[key]
        for texts in thinned.values():
            with self._counted(texts):
                texts.tidy(num_moved)

    @contextmanager
    def _counted(self, texts: _NamespaceTexts) -> Iterator[None]:
        """Keep the sums over all namespaces right while one of them changes."""
        before = (texts.num_tokens, len(texts.starts), texts.num_bytes)
        yield
        self._num_tokens += texts.num_tokens - before[0]
        self.num_texts += len(texts.starts) - before[1]
        self.num_bytes += texts.num_bytes - before[2]

    def _write(self, token_log: TokenLog, record: Record, num_moved: int) -> None:
        try:
            token_log.append(record)
            if token_log.num_tokens > 2 * self._capacity and not token_log.is_rewriting:
                token_log.begin_rewrite(self._live_records())
            if token_log.is_rewriting:
                token_log.continue_rewrite(num_moved)
        except (OSError, ConfigError) as error:
            log.error("corpus file %s is not written any more: %s", token_log.path, error)
            self.close()

    def _live_records(self) -> Iterator[Record]:
        """The texts that are held now, but for those that are dropped before it is their turn."""
        kept = [text for key, texts in self._texts.items() for text in texts.kept(key)]
        return (
            Record(text.key, found[0].tokens[found[1].start : found[1].stop - 1])
            for text in kept
            if (found := self.where(text)) is not None
        )

    def indexes(self, namespace: str) -> list[SuffixIndex]:
        """What a namespace may see: its own index, the public one, that of the added files."""
        texts = self._texts
        if not texts:
            return []
        keys = (_key_of(namespace), _PUBLIC, _FILES) if namespace else (_PUBLIC, _FILES)
        return [texts[key].index for key in keys if key in texts]

    def read(self, namespace: str, places: Sequence[int], max_tokens: int) -> CorpusPart:
        """What a namespace may see, after the places of the last part; for the first, ()."""
        keys = (_key_of(namespace), _PUBLIC, _FILES) if namespace else (_PUBLIC, _FILES)
        found, ends, num_left = array("i"), [], 0
        for key, place in zip(keys, (*places, 0, 0, 0), strict=False):
            texts = self._texts.get(key)
            if texts is None:
                ends.append(0)
                continue
            index = texts.index
            start = max(place - texts.num_before, index.floor)
            end = min(len(index), start + max_tokens - len(found))
            found.extend(index.tokens[start:end])
            ends.append(texts.num_before + end)
            num_left += len(index) - end
        return CorpusPart(found.tobytes(), tuple(ends), not num_left)

    def newest(self, namespace: str) -> KeptText | None:
        """The text that was added last to this namespace; None if it had to make room at once."""
        key = _key_of(namespace)
        texts = self._texts.get(key)
        if texts is None:
            return None
        return KeptText(
            key, texts.num_before + texts.starts[-1], texts.num_before + len(texts.index)
        )

    def where(self, answer: KeptText) -> tuple[SuffixIndex, range] | None:
        """The index that has a text, and its positions there; None once it is forgotten."""
        texts = self._texts.get(answer.key)
        if texts is None or answer.start - texts.num_before < texts.index.floor:
            return None
        return texts.index, range(answer.start - texts.num_before, answer.end - texts.num_before)

    def close(self) -> None:
        """Flush and close the file; the texts stay usable."""
        token_log, self._log = self._log, None
        if token_log is not None:
            token_log.close()
