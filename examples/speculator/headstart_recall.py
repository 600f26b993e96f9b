"""Drafts with a small model of its own: a memory of each text, read like a recurrent model.

It maps what stands at the end of a text (`key`) to the embedding of the token that follows, and
learns from each mistake: fast weights (Schlag et al. 2021, https://arxiv.org/abs/2102.11174).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.speculators import Speculator, register
from headstart.types import Draft, DraftRequest, Vocab

WIDTH = 128  # of an embedding
MOST_READ = 512  # tokens of a text in one step: all requests wait meanwhile
SHARPNESS = 16.0  # of the probabilities


class Memory:
    """The model's state behind the first `num_read` tokens of a sequence."""

    def __init__(self) -> None:
        self.num_read = 0
        self.key = np.zeros(WIDTH, np.float32)
        self.weights = np.zeros((WIDTH, WIDTH), np.float32)


@register
class RecallSpeculator(Speculator):
    """Recalls what followed words like the last ones."""

    name = "recall"
    is_model = True  # control decides for whom and how far it drafts, by what that costs
    scores_are_probabilities = True

    def __init__(self, vocab: Vocab) -> None:
        random = np.random.default_rng(0)
        rows = random.standard_normal((vocab.size, WIDTH), np.float32)
        self._embeddings = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        self._memories: dict[int, Memory] = {}

    def begin(self, seq_id: int, text: Sequence[int], namespace: str = "") -> None:
        """Read nothing yet: perhaps nobody asks for drafts."""
        self._memories[seq_id] = Memory()

    def num_catch_up(self, seq_id: int, history: Sequence[int]) -> int:
        """Tokens to read before it can draft, besides the newest."""
        memory = self._memories.get(seq_id)
        return max(0, len(history) - 1 - (memory.num_read if memory else 0))

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self._propose(request, self._memories[request.seq_id]) for request in requests]

    def _propose(self, request: DraftRequest, memory: Memory) -> Draft:
        for token in request.tokens[memory.num_read : memory.num_read + MOST_READ]:
            wrong = self._embeddings[token] - memory.weights @ memory.key
            memory.weights += np.outer(wrong, memory.key)
            memory.key = self._key(memory.key, token)
            memory.num_read += 1
        if memory.num_read < len(request.tokens):
            return Draft(reason="model is processing the prompt", is_ready=False)
        tokens, scores, key = list[int](), list[float](), memory.key
        while len(tokens) < request.max_tokens:
            odds = np.exp(SHARPNESS * (self._embeddings @ (memory.weights @ key)))
            token = int(odds.argmax())
            probability = float(odds[token] / odds.sum())
            if probability < request.min_confidence:
                break
            tokens.append(token)
            scores.append(probability)
            key = self._key(key, token)
        return Draft(tokens, scores, reason="" if tokens else "model is unsure")

    def _key(self, key: NDArray[np.float32], token: int) -> NDArray[np.float32]:
        key = self._embeddings[token] + 0.7 * np.roll(key, 1)  # older tokens fade
        return key / np.linalg.norm(key)

    def end(self, seq_id: int) -> None:
        self._memories.pop(seq_id, None)
