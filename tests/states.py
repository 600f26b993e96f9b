"""A speculator that checks what it is told of the target's hidden states: it drafts only where it
has the right state of every token, and fails loudly where one is wrong; and a model that drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.harness import EOS, SIZE, Model

from headstart.app.speculation import make_speculator
from headstart.speculators import Speculator
from headstart.speculators.mtp import MtpSpeculator
from headstart.testing import ByteVocab, FakeEngine
from headstart.types import (
    LAST_STATE,
    Batch,
    CacheKind,
    ContextFullError,
    DecodedStates,
    Draft,
    DraftRequest,
)
from headstart.types.engine import Blocks
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams

LAYERS = frozenset({LAST_STATE, 2})
States = dict[int, NDArray[np.float32]]
KINDS = [CacheKind.CUT, CacheKind.WINDOW, CacheKind.ROLLBACK, CacheKind.CHECKPOINT]


class Sure(Model):
    """At temperature 0, with no end."""

    def logits_after(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        logits = super().logits_after(tokens).copy()
        logits[EOS] = -100.0
        return logits


def greedy(name: str, prompt: list[int], max_tokens: int = 16) -> Request:
    sampling = SamplingParams(temperature=0.0)
    return Request(request_id=name, prompt=prompt, sampling=sampling, max_tokens=max_tokens)


def prompt_of(seed: int, size: int = 60) -> list[int]:
    return [(seed * 5 + i * 3) % EOS for i in range(size)]


class StateReader(Speculator):
    """Remembers the states of all tokens that the target's cache holds, by sequence."""

    name = "state-reader"
    needs_states = True

    def __init__(self, target: Model, *, overlap: int = 0) -> None:
        """overlap: rows that it wants to see again where a text is continued."""
        self.state_layers = LAYERS
        self.known: dict[int, list[tuple[int, States]]] = {}  # (token, states by layer)
        self.reasons: dict[str, int] = {}
        self.checkpoints: list[tuple[int, int]] = []
        self._target, self._overlap = target, overlap

    def observe_states(self, decoded: DecodedStates) -> None:
        assert decoded.states.keys() == LAYERS
        for index, seq_id in enumerate(decoded.seq_ids.tolist()):
            known = self.known.setdefault(seq_id, [])
            position = int(decoded.positions[index])
            if position != len(known):  # it was never told of what comes before
                self.reasons["behind"] = self.reasons.get("behind", 0) + 1
                continue
            states = {layer: rows[index].copy() for layer, rows in decoded.states.items()}
            known.append((int(decoded.tokens[index]), states))
            tokens = [token for token, _ in known]
            for layer in LAYERS:
                assert np.array_equal(states[layer], self._target.state_after(tokens, layer))

    def truncate(self, seq_id: int, length: int) -> None:
        del self.known.setdefault(seq_id, [])[length:]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        assert length <= len(self.known[source])
        self.known[target] = self.known[source][:length]

    def checkpoint(self, seq_id: int) -> None:
        self.checkpoints.append((seq_id, len(self.known[seq_id])))

    def num_resumable(self, seq_id: int, length: int) -> int:
        return max(0, length - self._overlap)

    def save_sequence(self, seq_id: int, namespace: str) -> bytes | None:
        known = self.known.get(seq_id, [])
        return np.array([token for token, _ in known], np.int32).tobytes() if known else None

    def restore_sequence(
        self, seq_id: int, data: bytes | bytearray | memoryview, namespace: str
    ) -> None:
        tokens = np.frombuffer(data, np.int32).tolist()
        assert not self.known[seq_id]
        self.known[seq_id] = [
            (token, {n: self._target.state_after(tokens[: i + 1], n) for n in LAYERS})
            for i, token in enumerate(tokens)
        ]

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._draft(request) for request in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        known = [token for token, _ in self.known.get(request.seq_id, [])]
        if known != list(request.tokens[:-1]):
            assert not known or known == list(request.tokens[: len(known)])
            return Draft(reason="states are missing", is_ready=False)
        tokens = list(request.tokens)
        while len(tokens) < len(request.tokens) + request.max_tokens:
            logits = self._target.logits_after(tokens)
            position = len(tokens)
            token = int(logits[:EOS].argmax())  # for requests that ignore the end
            if request.choose is not None:
                token = request.choose(logits, position).coupled
            tokens.append(token)
        return Draft(tokens[len(request.tokens) :])


class FakeHeads(Model):
    """Heads that predict exactly what the target's logits are, and fail loudly where a row has
    another state than that of the token before it.
    """

    def __init__(self, target: Model | None = None, num_heads: int = 1, **settings: Any) -> None:
        super().__init__(**settings)
        self.target, self.num_heads, self.state_width = target or Model(), num_heads, 4
        self.num_cells = settings.get("num_cells", 64 * self.context_size)
        self.feature_width, self.shares_target, self.blocks = 0, False, None
        self.rows: list[NDArray[np.float32]] = []
        self.num_calls = 0

    def launch(self, batch: Batch) -> None:
        self.num_calls += 1
        assert batch.num_outputs in (0, batch.num_rows), "some rows have outputs and some have not"
        if self.cells_used() + batch.num_rows > self.num_cells:
            raise ContextFullError
        logits, self.rows = [], []
        for row in range(batch.num_rows):
            seq_id, position = int(batch.seq_ids[row]), int(batch.positions[row])
            assert seq_id % self.num_heads == batch.head
            cached = self.cache.setdefault(seq_id, [])
            if not cached:
                cached += [-1] * position
            assert position == len(cached), f"row at {position}, cache holds {len(cached)}"
            if -1 not in cached[:1]:  # it has read the beginning
                known = self.state_before(cached)
                assert np.array_equal(batch.states[row], known), f"another state at {position}"
            cached.append(int(batch.tokens[row]))
            logits.append(self.target.logits_after(cached))
            self.rows.append(self.target.state_after(cached, LAST_STATE))
        self._logits = np.stack(logits) if batch.num_outputs else np.zeros((0, SIZE), np.float32)

    def state_before(self, tokens: list[int]) -> NDArray[np.float32]:
        none = np.zeros(self.state_width, np.float32)
        return self.target.state_after(tokens, LAST_STATE) if tokens else none

    def outputs(self) -> NDArray[np.float32]:
        return np.stack(self.rows)

    def encode(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        raise AssertionError("heads read states as they are")


def make_any(
    name: str, draft: Callable[[], FakeEngine], vocab: ByteVocab, options: Mapping[str, Any]
) -> Speculator:
    """A speculator of any name, with all that a constructor may ask for."""
    parts: dict[str, Callable[[], Any]] = {
        "engine": draft,
        "vocab": lambda: vocab,
        "translator": lambda: None,  # the draft model's ids are the target's
        "heads": FakeHeads,
        "context": lambda: FakeDraftContext(name),
        "layers": lambda: layers_of(name),
    }
    return make_speculator(name, options, parts)


def mtp(engine: Model, num_heads: int = 1, **settings: int) -> MtpSpeculator:
    return MtpSpeculator(FakeHeads(engine, num_heads, **settings))


DRAFT_LAYERS = (0, 2)
STATE_WIDTH = 4


def layers_of(name: str) -> tuple[int, ...]:
    """What the speculator of this name reads of its target."""
    return (LAST_STATE,) if name == "gemma4-assistant" else DRAFT_LAYERS


class FakeDraftContext(Model):
    """What speculators that read states draft with, for the one of this name."""

    num_heads = 1
    num_sequences = 8
    state_width = STATE_WIDTH

    def __init__(self, name: str) -> None:
        super().__init__(2, skew=0.3)
        self.shares_target = name == "gemma4-assistant"
        self.feature_width = 0 if self.shares_target else len(DRAFT_LAYERS) * STATE_WIDTH
        is_dspark = name == "dspark"
        is_block = is_dspark or name == "dflash"
        self.blocks = Blocks(4, 0, is_dspark, is_dspark) if is_block else None
        self._num_outputs = 0

    def launch(self, batch: Batch) -> None:
        assert batch.num_outputs in (0, batch.num_rows), "some rows have outputs and some have not"
        self._num_outputs = batch.num_outputs
        logits = [
            self.logits_after(
                self._add(
                    int(batch.seq_ids[row]), int(batch.positions[row]), int(batch.tokens[row])
                )
            )
            for row in range(batch.num_rows)
        ]
        self._logits = np.stack(logits) if batch.num_outputs else np.zeros((0, SIZE), np.float32)

    def _add(self, seq_id: int, position: int, token: int) -> list[int]:
        if self.shares_target:
            return [token]
        cached = self.cache.setdefault(seq_id, [])
        if not cached:
            cached += [0] * position  # what stands first has no state before it
        assert position == len(cached), f"row at {position}, cache holds {len(cached)}"
        cached.append(token)
        return cached

    def outputs(self) -> NDArray[np.float32]:
        return np.full((self._num_outputs, STATE_WIDTH), 0.5, np.float32)

    def encode(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        assert features.shape[1] == self.feature_width
        return features[:, :STATE_WIDTH]
