"""A fake model and fake vocabularies: logic is tested on them without libllama.

`FakeEngine` is exact, instant and unforgiving: its logits are a hash of every cached token of the
sequence, so a missed rollback, a wrong position or a mix-up of slots changes the text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headstart.structures.checkpoints import Checkpoints
from headstart.types import (
    FINAL_STATE,
    Batch,
    CacheKind,
    ContextFullError,
    Filters,
    FimTokens,
    Logits,
    Rows,
)
from headstart.types.engine import Bytes, Checkpoint, SavedState
from headstart.types.errors import EngineError
from headstart.types.sampling_params import SamplingParams


class ByteVocab:
    """256 byte tokens, then <eos> (256) and <bos> (257)."""

    size = 258
    eog_ids = frozenset({256})
    bos_id: int | None = 257
    eos_id: int | None = 256
    fim = FimTokens()
    add_bos = False

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        if not parse_special:
            return list(raw)
        ids: list[int] = []
        for index, part in enumerate(raw.split(b"<eos>")):
            ids += [256] * (index > 0) + list(part)
        return ids

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def token_text(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else (b"<eos>", b"<bos>")[token - 256]

    def is_control(self, token: int) -> bool:
        return token >= 256


class LetterVocab(ByteVocab):
    """32 tokens, as many as `FakeEngine` has: letters, space, `:,"`, a newline (30), <eos> (31).

    Other bytes are left out.
    """

    size = 32
    eog_ids = frozenset({31})
    bos_id: int | None = None
    eos_id: int | None = 31

    _TEXT = b'abcdefghijklmnopqrstuvwxyz :,"\n'

    def tokenize(self, text: str | bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        return [self._TEXT.index(byte) for byte in raw if byte in self._TEXT]

    def token_bytes(self, token: int) -> bytes:
        return self._TEXT[token : token + 1]

    def token_text(self, token: int) -> bytes:
        return self.token_bytes(token) or b"<eos>"

    def is_control(self, token: int) -> bool:
        return token == 31


class FakeFilters:
    """Top-k and temperature in numpy: enough to test the rule without libllama."""

    decisive_gap: float | None = None

    def __init__(self, params: SamplingParams) -> None:
        self._params = params

    def apply(
        self, ids: NDArray[np.int32], logits: NDArray[np.float32], use_xtc: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        if self._params.top_k:
            keep = np.argsort(-logits, kind="stable")[: self._params.top_k]
            ids, logits = ids[keep], logits[keep]
        return ids, logits if self._params.is_greedy else logits / np.float32(
            self._params.temperature
        )

    def accept(self, token: int) -> None:
        """Do nothing: these filters do not depend on the text."""


class FakeEngine:
    """`Engine` without a model.

    Args:
        order: logits depend on the last `order` tokens only (None: on all), which makes text
            repetitive enough for drafts to be accepted.
        cache_kind: which rollbacks `truncate` refuses; of a WINDOW only the last 16 tokens stay.
        fail: called before each decode; may raise to play a failure.
    """

    def __init__(
        self,
        vocab_size: int = 32,
        order: int | None = None,
        *,
        context_size: int = 512,
        num_cells: int | None = None,
        cache_kind: CacheKind = CacheKind.CUT,
        fail: Callable[[Batch], None] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.context_size = context_size
        self.num_cells = num_cells or context_size
        self.lacks_cells = False
        self.max_batch_tokens = 256
        self.max_outputs = 128
        self.padding_sequence: int | None = 10_000
        self.is_asynchronous = False
        self.attention_tile = 1
        self.cache_kind = cache_kind
        kinds = {CacheKind.ROLLBACK: Rows.PADDED, CacheKind.CHECKPOINT: Rows.EQUAL}
        self.rows = kinds.get(cache_kind, Rows.TOGETHER)
        self.has_prompt_widths = self.has_reference = False
        self.max_rollback = 4 if cache_kind is CacheKind.ROLLBACK else 2**30
        self.can_shift = self.has_blocks = cache_kind is CacheKind.CUT
        self.cache: dict[int, list[int]] = {}
        self.num_decodes = 0
        self.num_rows = 0
        self.sharpness = 2.0
        self.fail = fail
        self._order = order
        self.checkpoints = Checkpoints(8, 2**20)
        self.window = 16 * (cache_kind is CacheKind.WINDOW)
        self._oldest: dict[int, int] = {}  # first token that all layers still hold, of WINDOW
        self._last_rows: dict[int, int] = {}
        self.state_layers: tuple[int, ...] = ()  # layers whose states are published
        self._states: dict[int, list[NDArray[np.float32]]] = {}  # of the last decode
        self._logits: Logits = np.zeros((0, vocab_size), np.float32)  # of the last decode

    def decode(self, batch: Batch) -> Logits:
        self.launch(batch)
        return self.wait()

    def launch(self, batch: Batch) -> None:
        if self.fail is not None:
            self.fail(batch)
        if batch.num_rows > self.max_batch_tokens or batch.num_outputs > self.max_outputs:
            raise EngineError(
                f"batch of {batch.num_rows} rows and {batch.num_outputs} outputs is too large"
            )
        if self.cells_used() + batch.num_rows > self.num_cells:
            raise ContextFullError
        self.num_decodes += 1
        self.num_rows += batch.num_rows
        self._last_rows = {}
        self._states = {layer: [] for layer in self.state_layers}
        out = []
        for row in range(batch.num_rows):
            seq_id, position = int(batch.seq_ids[row]), int(batch.positions[row])
            cached = self.cache.setdefault(seq_id, [])
            if seq_id not in self._last_rows:
                self._slide(seq_id, position)
            if position != len(cached):
                raise AssertionError(
                    f"sequence {seq_id}: row at {position}, cache holds {len(cached)}"
                )
            if batch.media is None and not 0 <= batch.tokens[row] < self.vocab_size:
                raise AssertionError(
                    f"sequence {seq_id}: token {batch.tokens[row]} is not in the vocabulary"
                )
            cached.append(int(batch.tokens[row]))
            self._last_rows[seq_id] = self._last_rows.get(seq_id, 0) + 1
            for layer, rows in self._states.items():
                rows.append(self.state_after(cached, layer))
            if batch.wants_logits[row]:
                out.append(self.logits_after(cached))
        if batch.num_outputs < batch.num_rows and len(self._last_rows) > 1:
            # snapshots of a draft are lost when prompt rows are computed
            self._last_rows = dict.fromkeys(self._last_rows, 1)
        self._logits = np.stack(out) if out else np.zeros((0, self.vocab_size), np.float32)

    def wait(self) -> Logits:
        return self._logits

    def logits_after(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The model: logits of the token that follows `tokens`."""
        seen = tokens if self._order is None else tokens[-self._order :]
        return _random_row(_hash(seen), self.sharpness, self.vocab_size).copy()

    def publish_states(self, layers: Collection[int]) -> None:
        self.state_layers = tuple(sorted({*self.state_layers, *layers}))

    def show_final_states(self, *, is_on: bool) -> None:
        others = (layer for layer in self.state_layers if layer != FINAL_STATE)
        self.state_layers = (FINAL_STATE,) * is_on + tuple(others)

    def hidden_states(self) -> Mapping[int, NDArray[np.float32]]:
        return {layer: np.array(rows, np.float32) for layer, rows in self._states.items()}

    @staticmethod
    def state_after(tokens: Sequence[int], layer: int) -> NDArray[np.float32]:
        """The hidden state of the last of these tokens: a hash of all of them and of the layer."""
        state = _hash((layer + 1, *tokens))
        return np.array([state >> shift & 0xFFFF for shift in (0, 16, 32, 48)], np.float32)

    def cells_used(self) -> int:
        """Tokens in the cache; shared prefixes count once per sequence here."""
        return sum(len(tokens) for tokens in self.cache.values())

    def truncate(self, seq_id: int, length: int) -> bool:
        if not self._can_cut(seq_id, length):
            return False
        cached = self.cache.get(seq_id, [])
        if length < len(cached):
            self._last_rows[seq_id] = 0
            del cached[length:]
            self.checkpoints.cut(seq_id, length)
        return True

    def shift(self, seq_id: int, start: int, end: int) -> bool:
        assert self.can_shift, "this memory cannot be moved"
        assert 0 <= start < end <= len(self.cache[seq_id]), "no tokens of this sequence"
        del self.cache[seq_id][start:end]
        return True

    def _can_cut(self, seq_id: int, length: int) -> bool:
        dropped = len(self.cache.get(seq_id, [])) - length
        if self.cache_kind is CacheKind.CUT or not length or dropped <= 0:
            return True
        if self.cache_kind is CacheKind.WINDOW:
            return self._oldest.get(seq_id, 0) <= max(0, length - self.window + 1)
        if self.cache_kind is CacheKind.CHECKPOINT:
            return False
        return dropped <= min(self.max_rollback, self._last_rows.get(seq_id, 0) - 1)

    def _can_copy(self, seq_id: int, length: int) -> bool:
        if self.cache_kind in (CacheKind.CUT, CacheKind.WINDOW):
            return self._can_cut(seq_id, length)
        return length == len(self.cache.get(seq_id, []))

    def _slide(self, seq_id: int, length: int) -> None:
        """Drop the tokens that no token after the first `length` can see."""
        oldest = max(0, length - self.window + 1)
        self._oldest[seq_id] = max(oldest, self._oldest.get(seq_id, 0))

    def reusable(self, seq_id: int, length: int, *, by_copy: bool = False) -> int:
        if self._can_copy(seq_id, length) if by_copy else self._can_cut(seq_id, length):
            return length
        checkpoint = self.checkpoints.best(seq_id, length)
        return checkpoint.length if checkpoint else 0

    def rewind(self, seq_id: int, length: int) -> int:
        if length and self.truncate(seq_id, length):
            return length
        checkpoint = self.checkpoints.best(seq_id, length)
        if checkpoint is None:
            self.clear(seq_id)
            return 0
        kept = self.cache[seq_id][: checkpoint.length]
        assert kept == np.frombuffer(checkpoint.data, np.int32).tolist(), "of another text"
        self.cache[seq_id], self._last_rows[seq_id], self._oldest[seq_id] = kept, 0, 0
        self._slide(seq_id, len(kept))
        self.checkpoints.cut(seq_id, len(kept))
        return len(kept)

    def checkpoint(self, seq_id: int) -> None:
        if self.cache_kind is not CacheKind.CUT and self.cache.get(seq_id):
            self.checkpoints.add(seq_id, self._checkpoint_of(seq_id))

    def keep_for_draft(self, seq_id: int) -> bool:
        if self.cache_kind is not CacheKind.CHECKPOINT:
            return True
        if self.checkpoints.is_before_draft(seq_id, len(self.cache[seq_id])):
            return True
        return self.checkpoints.add_brief(seq_id, self._checkpoint_of(seq_id))

    def _checkpoint_of(self, seq_id: int) -> Checkpoint:
        tokens = self.cache[seq_id]
        return Checkpoint(len(tokens), np.asarray(tokens, np.int32).tobytes())

    def copy_prefix(self, source: int, target: int, length: int) -> bool:
        self.clear(target)
        if self.reusable(source, length, by_copy=True) != length:
            return False
        self.cache[target] = self.cache.get(source, [])[:length]
        self._last_rows[target] = 0
        self._slide(target, length)
        self.checkpoints.share(source, target, length)
        return True

    def clear(self, seq_id: int) -> None:
        self.cache.pop(seq_id, None)
        self._last_rows.pop(seq_id, None)
        self._oldest.pop(seq_id, None)
        self.checkpoints.drop(seq_id)

    def wipe(self) -> None:
        assert not self.cells_used(), "sequences must be empty"

    def save_sequence(self, seq_id: int) -> SavedState:
        tokens = np.asarray(self.cache.get(seq_id, []), np.int32)
        # after the header of libllama's states, without files
        return SavedState(bytes(14) + tokens.tobytes(), tuple(self.checkpoints.of(seq_id)))

    def restore_sequence(self, seq_id: int, data: SavedState) -> int:
        self.clear(seq_id)
        tokens = np.frombuffer(data.state[14:], np.int32).tolist()
        self.lacks_cells = self.cells_used() + len(tokens) > self.num_cells
        if not tokens or self.lacks_cells:
            return 0
        self.cache[seq_id], self._last_rows[seq_id] = tokens, 0
        self._slide(seq_id, len(tokens) - 1)  # libllama keeps what the last one sees
        for checkpoint in data.checkpoints:
            self.checkpoints.add(seq_id, checkpoint)
        return len(tokens)

    def save_block(self, seq_id: int, start: int, end: int) -> bytearray:
        tokens = self.cache[seq_id][start:end]
        assert len(tokens) == end - start, "not in the cache"
        return bytearray(np.asarray([start, *tokens], np.int32).tobytes())

    def restore_block(self, seq_id: int, data: Bytes) -> bool:
        start, *tokens = np.frombuffer(data, np.int32).tolist()
        cells = self.cache.setdefault(seq_id, [])
        assert start == len(cells), "a gap, or twice"
        self.lacks_cells = self.cells_used() + len(tokens) > self.num_cells
        if not self.lacks_cells:
            cells += tokens
        return not self.lacks_cells

    def begin_filters(self, params: SamplingParams) -> None:
        return

    def make_filters(self, params: SamplingParams) -> Filters:
        return FakeFilters(params)


@lru_cache(64)  # with an order few texts are told apart
def _random_row(seed: int, sharpness: float, size: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0.0, sharpness, size).astype(np.float32)


def _hash(tokens: Sequence[int]) -> int:
    state = 0xCBF29CE484222325
    for token in tokens:
        state = ((state ^ (token + 1)) * 0x100000001B3) & (2**64 - 1)
    return state
