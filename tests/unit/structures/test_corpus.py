"""The corpus keeps namespaces apart, memory bounded and nothing from being lost on disk."""

from __future__ import annotations

import signal
import subprocess
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness import EOS, Model, fixed, make_scheduler, run
from tests.unit.structures.test_suffix_index import brute_places

from headstart.speculators import suffix
from headstart.speculators.suffix import SuffixSpeculator
from headstart.structures import corpus as corpus_module
from headstart.structures import suffix_index
from headstart.structures.corpus import SIZES, SuffixCorpus, _key_of
from headstart.structures.suffix_index import SEPARATOR, SuffixIndex, _Chains
from headstart.structures.text_store import TextStore
from headstart.testing import ByteVocab
from headstart.types.errors import ConfigError
from headstart.types.request import Request

VOCAB = ByteVocab()


def look_up(corpus: SuffixCorpus, tail: list[int], namespace: str = "") -> list[int]:
    """Tokens that followed `tail` wherever this namespace may look."""
    query = SuffixIndex(SIZES)
    query.extend(tail)
    found = [
        index.tokens[position]
        for index in corpus.indexes(namespace)
        for _, position in index.find(query.tokens, limit=50)
    ]
    return sorted(found)


def test_memory_does_not_grow_with_what_was_forgotten() -> None:
    corpus = SuffixCorpus(capacity=1000)
    sizes = []
    for turn in range(200):
        corpus.add([turn * 50 + i for i in range(50)])
        corpus.go_on()
        sizes.append(corpus.num_bytes)
    assert max(sizes[100:]) <= max(sizes[:100])
    assert corpus.num_tokens <= 1000


def test_a_namespace_with_one_short_text_takes_little_memory() -> None:
    """A tenant with a LoRA per request had tables for 1,000 tokens for each of 11."""
    corpus = SuffixCorpus()
    for number in range(100):
        corpus.add(range(number, number + 10), f"tenant {number}")
        corpus.go_on()
    assert corpus.num_bytes < 1000 * corpus.num_texts == 100_000


def test_a_long_text_makes_room_for_itself_a_few_texts_a_step() -> None:
    """Issue 28: 4,800 short texts made room for a long one in 73 ms, for which all waited."""
    corpus = SuffixCorpus(capacity=10_000)
    for turn in range(500):
        corpus.add([turn % 250, turn // 250, *range(18)])
        corpus.go_on()
    dropped = [corpus.num_texts]
    corpus.add([7] * 9_000)
    while corpus.unfinished:
        dropped.append(corpus.num_texts)
        corpus.go_on()
    assert max(a - b for a, b in pairwise(dropped)) <= corpus_module._MOST_DROPPED
    assert corpus.num_tokens <= 10_000
    assert corpus.num_texts < 60


class Unread(dict[bytes, Any]):
    """Namespaces that nobody may go through."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("linear in namespaces")

    values = items = __iter__  # type: ignore[assignment]


def test_sums_are_told_and_room_is_made_without_a_look_at_every_namespace() -> None:
    corpus = SuffixCorpus(capacity=1000)
    for turn in range(100):
        corpus.add([turn * 50 + i for i in range(50)], f"tenant {turn % 7}")
    texts = list(corpus._texts.values())
    assert corpus.num_tokens == sum(one.num_tokens for one in texts) <= 1000
    assert corpus.num_texts == sum(len(one.texts) for one in texts)
    assert corpus.num_bytes == sum(one.num_bytes for one in texts)
    speculator = SuffixSpeculator()
    speculator.corpus, corpus._texts = corpus, Unread(corpus._texts)
    told = speculator.describe()
    assert told["corpus_tokens"] == corpus.num_tokens
    assert (told["corpus_texts"], told["corpus_bytes"]) == (corpus.num_texts, corpus.num_bytes)
    corpus.add(range(999), "tenant 1")
    assert corpus.num_tokens <= 1000


def test_a_step_puts_few_tokens_in_order_however_long_a_text_is(monkeypatch) -> None:
    """Issue 28: the engine's loop waits for all of it: long prompts, growth, compaction. Counted in
    tokens that are put in chains; long texts are found before they are.
    """
    link, linked, most = _Chains.append, [0], 0

    def counted(chains: _Chains, tokens: array[int], end: int) -> None:
        before = len(chains.previous)
        link(chains, tokens, end)
        linked[-1] += len(chains.previous) - before

    monkeypatch.setattr(_Chains, "append", counted)
    monkeypatch.setattr(suffix_index, "SLICE", 512)
    texts = np.random.default_rng(0).integers(0, 250, (100, 2000)).tolist()
    speculator, num_replaced, last = SuffixSpeculator(SuffixSpeculator.Options(20_000)), -1, None
    monkeypatch.setattr(suffix, "SLICE", 512)
    for turn, text in enumerate(texts):
        for step in range(8):
            linked[-1] = 0
            if not step:
                speculator.begin(0, text[:-8])
            speculator.accept(0, text[step - 8 : step - 7 or None], 0)
            speculator.go_on()
            if step == 7:
                speculator.end(0)
            most = max(most, linked[-1])
        (index,) = speculator.corpus.indexes("")
        num_replaced, last = num_replaced + (index is not last), index
        if turn > 10:
            assert speculator.corpus.num_tokens > 17_000
            assert look_up(speculator.corpus, text[:8]) == [text[8]]
    assert num_replaced > 3, "it has grown, and was compacted"
    assert most <= len(SIZES) * 5 * 512


def test_long_prompts_with_answers_of_two_tokens_are_put_in_order_while_they_are_read(monkeypatch):
    monkeypatch.setattr(suffix_index, "SLICE", 512)
    monkeypatch.setattr(suffix, "SLICE", 512)
    speculator = SuffixSpeculator(SuffixSpeculator.Options(20_000))
    engine = Model(2, context_size=2048)
    scheduler = make_scheduler(engine, [speculator], fixed(4))
    prompts = np.random.default_rng(0).integers(0, EOS, (80, 1500)).tolist()
    num_unlinked, sizes = [], []
    for number, prompt in enumerate(prompts):
        run(scheduler, [Request(request_id=str(number), prompt=prompt, max_tokens=2)])
        (index,) = speculator.corpus.indexes("")
        num_unlinked.append(len(index) - index.num_linked)
        sizes.append(speculator.corpus.num_bytes)
    assert speculator.corpus.num_tokens > 17_000
    assert max(num_unlinked) < 20_000, "no more than is made anew"
    assert max(sizes[40:]) <= max(sizes[:40])


def test_of_what_waits_to_be_put_in_order_only_live_texts_are_searched() -> None:
    corpus, copied = SuffixCorpus(1000), list[int]()

    class Watched(array):  # type: ignore[type-arg]
        def __getitem__(self, key: Any) -> Any:
            found = super().__getitem__(key)
            if isinstance(key, slice):
                copied.append(len(found))
            return found

    for turn in range(100):
        corpus.add([turn] * 98)
    (index,) = corpus.indexes("")
    index.tokens = Watched("i", index.tokens)
    assert look_up(corpus, [99, 99])
    assert max(copied) <= 1000


def test_texts_survive_closing_and_opening(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    corpus = SuffixCorpus(store=TextStore(path, VOCAB))
    corpus.add([1, 2, 3], "alice")
    corpus.add([1, 2, 4])
    corpus.close()
    assert b"alice" not in path.read_bytes()
    corpus = SuffixCorpus(store=TextStore(path, VOCAB))
    assert look_up(corpus, [1, 2], "alice") == [3, 4]
    assert not corpus.add([1, 2, 4])
    corpus.close()


@pytest.mark.parametrize("store", [None, False])
def test_a_text_that_is_not_to_be_kept_is_not_in_the_file(store, tmp_path):
    path = tmp_path / "corpus"
    speculator = SuffixSpeculator(SuffixSpeculator.Options(file=str(path)), VOCAB)
    scheduler = make_scheduler(Model(2), [speculator], fixed(4))
    run(scheduler, [Request(request_id="a", prompt=[1, 2, 3, 4], max_tokens=8, store=store)])
    assert speculator.corpus.num_tokens > 8, "later requests draft from it while the server runs"
    speculator.close()
    texts = TextStore(path, VOCAB)
    texts.close()
    assert len(texts.texts) == (store is None)


def test_a_file_does_not_grow_with_texts_long_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    sizes = []
    for turns in (50, 300):
        corpus = SuffixCorpus(1000, TextStore(path, VOCAB))
        for turn in range(turns):
            corpus.add([turn // 250, *((turn * 7 + i) % 250 for i in range(99))])
        corpus.close()
        sizes.append(path.stat().st_size)
    assert sizes[1] <= 1.25 * sizes[0]
    reopened = SuffixCorpus(1000, TextStore(path, VOCAB))
    assert reopened.num_tokens == corpus.num_tokens
    reopened.close()
    assert [file.name for file in tmp_path.iterdir()] == ["corpus"]


def test_a_full_disk_costs_the_file_and_not_the_texts(tmp_path, caplog) -> None:
    path = tmp_path / "corpus"
    corpus = SuffixCorpus(store=TextStore(path, VOCAB))
    corpus.add([1, 2, 3])
    assert corpus._store is not None
    corpus._store._db.execute("PRAGMA max_page_count = 1")  # not below what there is
    corpus.add([4, 5, *range(100, 200), *range(250)] * 9)
    assert "is not written any more" in caplog.text
    assert 100 in look_up(corpus, [4, 5])
    corpus.close()
    corpus = SuffixCorpus(store=TextStore(path, VOCAB))
    assert (corpus.num_texts, look_up(corpus, [1, 2])) == (1, [3])
    corpus.close()


WRITER = """
import sys
from pathlib import Path
from headstart.structures.corpus import SuffixCorpus
from headstart.structures.text_store import TextStore
from headstart.testing import ByteVocab
corpus = SuffixCorpus(3000, TextStore(Path(sys.argv[1]), ByteVocab()))
for turn in range(10**9):
    corpus.add([turn % 251, turn // 251 % 251] + [(turn + i) % 256 for i in range(100)])
    print(turn, flush=True)
"""


def test_kill_9_while_writing_loses_nothing_that_was_added(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    for _ in range(300):  # compactions included
        line = writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    last = int(([line, *writer.stdout.readlines()])[-1])
    writer.wait()
    writer.stdout.close()
    corpus = SuffixCorpus(3000, TextStore(path, VOCAB))
    for turn in range(last - 20, last + 1):
        text = [turn % 251, turn // 251 % 251] + [(turn + i) % 256 for i in range(100)]
        assert not corpus.add(text), f"text {turn} of {last} was lost"
    corpus.close()


def test_a_file_kept_for_a_far_larger_corpus_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Opened with a smaller one, it would lose its oldest texts."""
    path = tmp_path / "corpus"
    large = SuffixCorpus(1000, TextStore(path, VOCAB))
    for first in range(10):
        large.add([first, *range(100, 189)])
    large.close()
    before = path.read_bytes()
    with pytest.raises(
        ConfigError, match=r"holds 900 tokens but --spec-suffix-corpus-tokens is 200.*raise it"
    ):
        SuffixCorpus(200, TextStore(path, VOCAB))
    assert path.read_bytes() == before
    again = SuffixCorpus(500, TextStore(path, VOCAB))
    assert 400 < again.num_tokens <= 500
    again.close()


# small, so that short texts have several blocks and long matches
BLOCK, MAX_MATCH = 4, max(6, *SIZES)
ALL = 10**9
Text = tuple[int, ...]


@dataclass(eq=False)
class Held:
    """A text that is kept, and the beginnings that are known as long as it is."""

    tokens: Text
    beginnings: set[Text] = field(default_factory=set)


class Twin:
    """A list of texts for each namespace, and nothing clever."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.texts: dict[str, list[Held]] = {}

    def add(self, name: str, tokens: Sequence[int]) -> bool:
        text = tuple(tokens)[max(0, len(tokens) - self.capacity + 1) :]
        known = {beginning for held in self.texts.get(name, ()) for beginning in held.beginnings}
        ends = [*range(BLOCK, len(text), BLOCK), len(text)] if text else []
        num_known = next((i for i, end in enumerate(ends) if text[:end] not in known), None)
        if num_known is None:
            return False
        part = text[max(0, num_known * BLOCK - MAX_MATCH) :]
        if part in known:
            return False
        held = Held(part, {*(text[:end] for end in ends), part} - known)
        self.texts.setdefault(name, []).append(held)
        while self.size > self.capacity:
            fullest = max(self.texts, key=lambda name: (self.size_of(name), _key_of(name)))
            del self.texts[fullest][0]
            if not self.texts[fullest]:
                del self.texts[fullest]
        return True

    @property
    def size(self) -> int:
        return sum(map(self.size_of, self.texts))

    def size_of(self, name: str) -> int:
        return sum(len(held.tokens) + 1 for held in self.texts[name])

    def seen_by(self, name: str) -> list[list[int]]:
        """The tokens that a namespace may look into, in the order of the indexes."""
        names = [n for n in dict.fromkeys((name, "")) if n in self.texts]
        return [
            [token for held in self.texts[n] for token in (*held.tokens, SEPARATOR)] for n in names
        ]


def check_view(corpus: SuffixCorpus, twin: Twin, name: str, tail: list[int]) -> None:
    indexes, texts = corpus.indexes(name), twin.seen_by(name)
    assert [index.tokens[index.floor :].tolist() for index in indexes] == texts
    query = SuffixIndex(SIZES, MAX_MATCH)
    query.extend(tail)
    for index, text in zip(indexes, texts, strict=True):
        found = [
            (length, position - index.floor) for length, position in index.find(query.tokens, ALL)
        ]
        assert found == brute_places(text, tail, SIZES, MAX_MATCH)


runs = st.lists(st.integers(0, 2), max_size=14)
additions = st.tuples(
    st.sampled_from(["", "a", "b"]),
    st.integers(0, 30),  # which earlier text it begins like, if there are so many
    st.integers(0, 20),  # for so many tokens
    runs,
)


@given(st.integers(5, 70), st.lists(additions, max_size=40), runs)
def test_texts_are_those_of_lists_of_texts(capacity, steps, tail) -> None:
    """Known beginnings, eviction, new indexes, and namespaces."""
    with (
        patch.object(corpus_module, "_BLOCK", BLOCK),
        patch.object(corpus_module, "MAX_MATCH", MAX_MATCH),
    ):
        corpus, twin = SuffixCorpus(capacity), Twin(capacity)
        earlier: list[list[int]] = []
        for name, which, size, run in steps:
            text = [*(earlier[which][:size] if which < len(earlier) else []), *run]
            earlier.append(text)
            assert corpus.add(text, name) == twin.add(name, text)
            assert corpus.num_tokens == twin.size <= capacity
            assert corpus.num_texts == sum(map(len, twin.texts.values()))
            for name in ("", "a", "b", "c"):
                check_view(corpus, twin, name, [*text, *tail])
