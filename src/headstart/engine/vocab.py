"""A model's vocabulary: text to tokens and back. Thread-safe, as libllama's tokenizer is.

libllama first splits a text at the markers of its vocabulary, in time quadratic in their number;
40,000 chat messages took 13 s. The text between markers is tokenized separately. So a text can be
cut before any marker that cannot overlap with another one: each part then takes time linear in its
length, and tokenizing can stop between parts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Iterator
from functools import cache, cached_property, partial
from threading import Lock
from typing import Any

from headstart.engine.library import api
from headstart.structures.interruption import progress
from headstart.types import FimTokens

_MAX_INFILL_BYTES = 512  # libllama's buffer for one token, which it fails to grow


class LlamaVocab:
    """`Vocab` over a loaded model (which it keeps alive)."""

    def __init__(self, model: Any, handle: Any) -> None:
        self._model = model
        self.handle = vocab = api.llama_model_get_vocab(handle)
        self.size: int = api.llama_vocab_n_tokens(vocab)
        self.eog_ids = frozenset(t for t in range(self.size) if api.llama_vocab_is_eog(vocab, t))
        self.bos_id = _optional(api.llama_vocab_bos(vocab))
        self.eos_id = _optional(api.llama_vocab_eos(vocab))
        self.fim = FimTokens(
            prefix=_optional(api.llama_vocab_fim_pre(vocab)),
            suffix=_optional(api.llama_vocab_fim_suf(vocab)),
            middle=_optional(api.llama_vocab_fim_mid(vocab)),
            repository=_optional(api.llama_vocab_fim_rep(vocab)),
            file=_optional(api.llama_vocab_fim_sep(vocab)),
        )
        self.add_bos: bool = bool(api.llama_vocab_get_add_bos(vocab))
        self.type: int = api.llama_vocab_type(vocab)
        self.token_bytes = cache(partial(self._piece, special=False))
        self.token_text = cache(partial(self._piece, special=True))
        self.dry_lock = Lock()
        self.dry_samplers: dict[Hashable, Any] = {}  # the one used last is last; see filters.py

    def tokenize(
        self,
        text: str | bytes,
        *,
        add_special: bool,
        parse_special: bool,
    ) -> list[int]:
        """Token ids of a text; lone surrogates become '?'. Between the parts of a long text it
        reports its `progress` (see structures/interruption.py) in tokens.
        """
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        if len(raw) <= PART_BYTES:
            return self._tokenize(raw, add_special, parse_special)
        parts = self._markers.parts(raw, parse_special=parse_special)
        tokens = self._tokenize(next(parts), add_special, parse_special)
        end = self._tokenize(b"", True, parse_special)[1:] if add_special else []
        for part in parts:
            progress(len(tokens))
            if end and tokens[-len(end) :] == end:  # an end marker before the end of the text
                del tokens[-len(end) :]
            tokens += self._tokenize(part, False, parse_special) + end
        return tokens

    @cached_property
    def _markers(self) -> Markers:
        return Markers(self.handle, self.size)

    def _tokenize(self, raw: bytes, add_special: bool, parse_special: bool) -> list[int]:
        count = -len(raw) - 16  # below 0: so many do not fit
        while count < 0:
            capacity = -count
            buffer = (ctypes.c_int32 * capacity)()
            count = api.llama_tokenize(
                self.handle, raw, len(raw), buffer, capacity, add_special, parse_special
            )
        return buffer[:count]

    @property
    def pair_marks(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Tokens before, between and after the two texts of a pair to rank."""
        sep = _optional(api.llama_vocab_sep(self.handle))
        eos = sep if self.eos_id is None else self.eos_id
        ends = [eos] if api.llama_vocab_get_add_eos(self.handle) else []
        seps = [sep] if api.llama_vocab_get_add_sep(self.handle) else []
        starts = [self.bos_id] if self.add_bos else []
        before, between, after = (
            tuple(token for token in tokens if token is not None)
            for tokens in (starts, ends + seps, ends)
        )
        return before, between, after

    def is_control(self, token: int) -> bool:
        is_token = 0 <= token < self.size  # of another, libllama would abort
        return is_token and bool(api.llama_vocab_is_control(self.handle, token))

    def why_no_infill(self) -> str | None:
        """Why libllama's infill sampler would abort, or None. O(size) at the first call."""
        if api.llama_vocab_eot(self.handle) < 0 and self.eos_id is None:
            return "the vocabulary has no token that ends a text"
        if self._longest > _MAX_INFILL_BYTES:
            limit = _MAX_INFILL_BYTES
            return f"the vocabulary has a token of {self._longest} bytes and it takes {limit}"
        return None

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token that may be too long for the infill sampler."""
        # a spelling is never shorter than its bytes, and several times faster to get
        spelled = (
            t
            for t in range(self.size)
            if len(api.llama_vocab_get_text(self.handle, t)) > _MAX_INFILL_BYTES
        )
        return max((len(self.token_bytes(t)) for t in spelled), default=0)

    def _piece(self, token: int, *, special: bool) -> bytes:
        if not 0 <= token < self.size:  # libllama would abort
            raise IndexError(f"token {token} is not in the vocabulary (0 to {self.size - 1})")
        count = -64  # below 0: so many do not fit
        while count < 0:
            buffer = ctypes.create_string_buffer(-count)
            count = api.llama_token_to_piece(self.handle, token, buffer, -count, 0, special)
        return buffer.raw[:count]


def _optional(token: int) -> int | None:
    return None if token < 0 else token


PART_BYTES = 1 << 14  # minimum size of a part
FEW_MARKERS = 1000  # texts with at most this many markers are not cut


class Markers:
    """The markers of a vocabulary at which a text may be cut."""

    def __init__(self, handle: Any, size: int) -> None:
        controls: list[bytes] = []
        others: list[bytes] = []
        lstripped: set[bytes] = set()
        control, user_defined, lstrip = 1 | 8, 16, 128  # libllama's bits; 1: unknown
        for token in range(size):
            attributes = api.llama_vocab_get_attr(handle, token)
            if not attributes & (control | user_defined):
                continue
            text = api.llama_vocab_get_text(handle, token)
            if not text:
                continue
            (controls if attributes & control else others).append(text)
            if attributes & lstrip:
                lstripped.add(text)
        apart = _not_overlapping([*controls, *others]) - lstripped
        self._others = [text for text in others if text in apart]
        self._all = [text for text in controls if text in apart] + self._others
        self._first_bytes = frozenset(text[:1] for text in self._all)
        self._last = b""  # last marker found: probably the next one too

    def parts(self, raw: bytes, *, parse_special: bool) -> Iterator[bytes]:
        """The text, cut where that does not change its tokens."""
        markers = self._all if parse_special else self._others
        if (
            len(raw) < 2 * PART_BYTES
            or sum(map(raw.count, self._first_bytes)) <= FEW_MARKERS
            or not markers
        ):
            yield raw
            return
        start, search = 0, PART_BYTES
        while search < len(raw) - PART_BYTES:
            cut = self._find(raw, search, markers)
            if cut < 0:
                search += PART_BYTES
                continue
            yield raw[start:cut]
            start, search = cut, cut + PART_BYTES
        yield raw[start:]

    def _find(self, raw: bytes, start: int, markers: list[bytes]) -> int:
        """Position of a marker not far after `start`; -1 if there is none."""
        end = start + PART_BYTES
        if self._last in markers and (found := raw.find(self._last, start, end)) >= 0:
            return found
        for marker in markers:
            if (found := raw.find(marker, start, end)) >= 0:
                self._last = marker
                return found
        return -1


def _not_overlapping(texts: list[bytes]) -> set[bytes]:
    """Markers that cannot share a byte with another one in any text, without outer white space."""
    known = set(texts)
    heads = {text[:end] for text in known for end in range(1, len(text) + 1)}
    overlapping, shared_heads = set(), set()
    for text in known:
        for start in range(1, len(text)):
            if text[start:] in heads:  # it may end where another one has begun
                overlapping.add(text)
                shared_heads.add(text[start:])
        for start in range(len(text)):
            ends = range(start + 1, len(text) + bool(start))
            overlapping.update(part for end in ends if (part := text[start:end]) in known)
    return {
        text
        for text in known - overlapping
        if text.strip() == text
        and not any(text[:end] in shared_heads for end in range(1, len(text) + 1))
    }
