"""A long text full of markers is tokenized in parts: the same tokens, in linear time."""

from __future__ import annotations

import random
import time

import pytest
from tests.models import MERGES, tiny_llama

from headstart.app import demo
from headstart.engine import vocab
from headstart.engine.model import Model
from headstart.engine.vocab import LlamaVocab
from headstart.structures.interruption import watched
from headstart.structures.suffix_index import SEPARATOR


def load(path) -> LlamaVocab:
    return Model(path).vocab


def texts_of(one: LlamaVocab, seed: int) -> bytes:
    """Markers, halves of markers, and what stands between them."""
    source = random.Random(seed)
    markers = [one.token_text(token) for token in range(one.size) if one.is_control(token)][:40]
    plain = [b" ", b"\n\n", b"hello world", b"\xc3\xa9", b"<", b"|>", b"  ", b"a", b"<|im_"]
    return b"".join(source.choice(markers + plain) for _ in range(600))


def check_same(one: LlamaVocab, monkeypatch) -> int:
    monkeypatch.setattr(vocab, "PART_BYTES", 256)
    monkeypatch.setattr(vocab, "FEW_MARKERS", 10)
    num_parts = 0
    for seed in range(3):
        raw = texts_of(one, seed)
        for add_special in (False, True):
            for parse_special in (False, True):
                whole = one._tokenize(raw, add_special, parse_special)
                parts = one.tokenize(raw, add_special=add_special, parse_special=parse_special)
                assert parts == whole
        num_parts += len(list(one._markers.parts(raw, parse_special=True)))
    return num_parts


def test_parts_give_the_tokens_of_the_whole(monkeypatch, tmp_path):
    for path in (demo.path(demo.TARGET), tiny_llama(tmp_path / "a.gguf", merges=MERGES)):
        assert check_same(load(path), monkeypatch) > 6


def test_forty_thousand_messages_take_a_linear_time_and_can_be_stopped():
    one = load(demo.path(demo.TARGET))
    marker = next(
        text for text in one._markers._all if one._tokenize(text, False, True) and b"<" in text
    )
    raw = (marker + b"a") * 80_000
    started = time.process_time()
    assert len(one.tokenize(raw, add_special=False, parse_special=True)) >= 160_000
    assert time.process_time() - started < 8  # 80,000 fragments took half a minute

    def stop(num_tokens: int) -> None:
        if num_tokens > 1000:
            raise InterruptedError

    started = time.process_time()
    with pytest.raises(InterruptedError), watched(stop):
        one.tokenize(raw, add_special=False, parse_special=True)
    assert time.process_time() - started < 1


def test_markers_that_may_overlap_are_not_cut_at():
    overlapping = [b"<a>", b"<a><b>", b"\n\n", b"\n\n\n", b"ab", b"bc", b" <c>", b"<d>", b"aa"]
    assert vocab._not_overlapping(overlapping) == {b"<d>", b"<a><b>"}


def test_an_id_in_place_of_an_image_is_no_token_and_ends_no_process():
    """libllama would abort; texts of speculators have it."""
    one = load(demo.path(demo.TARGET))
    assert not one.is_control(SEPARATOR)
    with pytest.raises(IndexError, match="16777214 is not in the vocabulary"):
        one.token_bytes(SEPARATOR)
