"""Texts that a model writes itself, for a head to learn from: its answers and continuations.

Each row begins with an excerpt of the corpus and goes on with what the model makes of it, at
temperature 0, 0.7 or 1.
"""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headstart.extras.distill.model import Block, LanguageModel, rotate
from training.batches import Rows

TEMPERATURES = (0.0, 0.7, 1.0)
REPEAT_SHARE = 0.05  # of the excerpts are spans that repeat
LEAST_EXCERPT, MOST_EXCERPT = 0.15, 0.6  # of a row


class Writer:
    """Writes many rows at once; keys and values are kept."""

    def __init__(self, model: LanguageModel, num_rows: int, length: int) -> None:
        self.model, shape = model, model.shape
        size = (num_rows, shape.num_kv_heads, length, shape.head_size)
        device = model.output.weight.device
        self._keys = [torch.zeros(size, device=device) for _ in model.blocks]
        self._values = [torch.zeros(size, device=device) for _ in model.blocks]
        self._num_known = 0

    @torch.no_grad()
    def read(self, tokens: Tensor) -> Tensor:
        """Logits behind the last of these tokens, shape (rows, vocab_size)."""
        x = self.model.token_embd(tokens)
        for index, block in enumerate(self.model.blocks):
            assert isinstance(block, Block)
            x = x + self._attend(block, index, block.attn_norm(x))
            hidden = block.ffn_norm(x)
            x = x + block.ffn_down(F.silu(block.ffn_gate(hidden)) * block.ffn_up(hidden))
        self._num_known += tokens.shape[1]
        logits: Tensor = self.model.output(self.model.output_norm(x[:, -1]))
        return logits

    def _attend(self, block: Block, index: int, x: Tensor) -> Tensor:
        start, end, shape = self._num_known, self._num_known + x.shape[1], self.model.shape
        cos, sin = self.model.cos[start:end], self.model.sin[start:end]
        queries, keys, values = (
            part(x).unflatten(-1, (-1, shape.head_size)).transpose(1, 2)
            for part in (block.attn_q, block.attn_k, block.attn_v)
        )
        self._keys[index][:, :, start:end] = rotate(keys, cos, sin)
        self._values[index][:, :, start:end] = values
        mixed = F.scaled_dot_product_attention(
            rotate(queries, cos, sin),
            self._keys[index][:, :, :end],
            self._values[index][:, :, :end],
            is_causal=x.shape[1] > 1,
            enable_gqa=True,
        )
        out: Tensor = block.attn_output(mixed.transpose(1, 2).flatten(2))
        return out


def write_rows(
    model: LanguageModel, rows: Rows, num_rows: int, seconds: float | None, seed: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return rows that the model wrote, and how long the excerpt is that each begins with.

    Args:
        rows: where the excerpts come from, and how long a row is.
        num_rows: how many; a multiple of 64.
        seconds: write fewer if it takes longer.
        seed: of the choices at a temperature, and of the lengths of the excerpts.
    """
    random, written, lengths = np.random.default_rng(seed), [], []
    generator = torch.Generator().manual_seed(seed)
    started, size = time.monotonic(), 64
    for _ in range(0, num_rows, size):
        if seconds is not None and time.monotonic() - started > seconds:
            break
        ids, _ = rows.batch(size, REPEAT_SHARE)
        known = int(random.uniform(LEAST_EXCERPT, MOST_EXCERPT) * ids.shape[1])
        written.append(_continue(model, ids, known, generator))
        lengths.append(np.full(size, known, np.int32))
    return np.concatenate(written), np.concatenate(lengths)


def _continue(
    model: LanguageModel, ids: NDArray[np.int32], known: int, generator: torch.Generator
) -> NDArray[np.int32]:
    """Rows with everything behind the first `known` tokens written anew."""
    device = model.output.weight.device
    writer, tokens = Writer(model, *ids.shape), torch.from_numpy(ids).long()
    heat = torch.tensor(TEMPERATURES).repeat(len(ids))[: len(ids), None]
    logits = writer.read(tokens[:, :known].to(device))
    for place in range(known, ids.shape[1]):
        noise = torch.rand(logits.shape, generator=generator).log().neg().log().neg()
        tokens[:, place] = (logits.cpu() + heat * noise).argmax(-1)
        if place + 1 < ids.shape[1]:
            logits = writer.read(tokens[:, place : place + 1].to(device))
    return tokens.numpy().astype(np.int32)
