"""A model of llama's kind in PyTorch, named and shaped like the GGUF it becomes.

Parameters carry GGUF's names (`blocks.0.attn_q.weight` becomes `blk.0.attn_q.weight`), and RoPE
rotates the pairs that libllama's architecture does, so weights export unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.types.errors import ModelError


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model, and how it differs from llama."""

    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    ff_width: int
    epsilon: float = 1e-5  # of the norms
    rope_base: float = 10000.0
    key_size: int | None = None  # of a head; None: width / num_heads
    rotates_halves: bool = False  # pairs are (i, i + half) of a head, not adjacent
    has_bias: bool = False  # of queries, keys and values
    norms_heads: bool = False  # queries and keys

    def __post_init__(self) -> None:
        if self.width % self.num_heads * (not self.key_size) or self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self}: num_heads must divide width, num_kv_heads must divide num_heads"
            )

    @property
    def head_size(self) -> int:
        return self.key_size or self.width // self.num_heads


def rope_frequencies(shape: Shape) -> Tensor:
    """Radians per position for each pair of a head, shape (head_size / 2,)."""
    steps = torch.arange(0, shape.head_size, 2) / shape.head_size
    frequencies: Tensor = shape.rope_base**-steps
    return frequencies


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, halves: bool = False) -> Tensor:
    """Apply RoPE to adjacent pairs, or to `halves`; shape (batch, heads, positions, head_size)."""
    if halves:
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Block(nn.Module):
    """Attention and a gated feed-forward, each after an RMS norm, added to the residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        head = shape.head_size
        q_width, kv_width = shape.num_heads * head, shape.num_kv_heads * head
        self.shape = shape
        self.attn_norm = nn.RMSNorm(shape.width, shape.epsilon)
        self.attn_q = nn.Linear(shape.width, q_width, bias=shape.has_bias)
        self.attn_k = nn.Linear(shape.width, kv_width, bias=shape.has_bias)
        self.attn_v = nn.Linear(shape.width, kv_width, bias=shape.has_bias)
        if shape.norms_heads:
            self.attn_q_norm = nn.RMSNorm(head, shape.epsilon)
            self.attn_k_norm = nn.RMSNorm(head, shape.epsilon)
        self.attn_output = nn.Linear(q_width, shape.width, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.width, shape.epsilon)
        self.ffn_gate = nn.Linear(shape.width, shape.ff_width, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.ff_width, bias=False)
        self.ffn_down = nn.Linear(shape.ff_width, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self._attend(self.attn_norm(x), cos, sin)
        hidden = self.ffn_norm(x)
        update: Tensor = self.ffn_down(F.silu(self.ffn_gate(hidden)) * self.ffn_up(hidden))
        return x + update

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        queries, keys = self._heads(self.attn_q(x)), self._heads(self.attn_k(x))
        if self.shape.norms_heads:
            queries, keys = self.attn_q_norm(queries), self.attn_k_norm(keys)
        halves = self.shape.rotates_halves
        queries, keys = (rotate(one, cos, sin, halves=halves) for one in (queries, keys))
        values = self._heads(self.attn_v(x))
        group = self.shape.num_heads // self.shape.num_kv_heads
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        out: Tensor = self.attn_output(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        batch_size, num_positions, _ = x.shape
        return x.view(batch_size, num_positions, -1, self.shape.head_size).transpose(1, 2)


class LanguageModel(nn.Module):
    """Token ids (batch, positions) to logits (batch, positions, vocab_size)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, context: int, rope_factors: Tensor | None = None) -> None:
        """`rope_factors`: what each pair's frequency is divided by."""
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.output_norm = nn.RMSNorm(shape.width, shape.epsilon)
        self.output = nn.Linear(shape.width, shape.vocab_size, bias=False)
        frequencies = rope_frequencies(shape)
        if rope_factors is not None:
            frequencies = frequencies / rope_factors
        angles = torch.arange(context)[:, None] * frequencies
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.output(self.states(tokens))
        return logits

    def states(self, tokens: Tensor) -> Tensor:
        """The final hidden states, shape (batch, positions, width)."""
        x = self.token_embd(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        normed: Tensor = self.output_norm(x)
        return normed
