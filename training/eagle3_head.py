"""An EAGLE-3 head in PyTorch, named and shaped like the GGUF it becomes.

It is as wide as the target and looks tokens up in the target's embeddings, so the file has none. It
starts with what the target's output makes of a state, and with a circuit that copies: a token is
compared with the token before each place of the text, which the target's states hold, and what
stood there is expected next (`training.induction` has the same circuit in two layers).

Source: Li et al. 2025, https://arxiv.org/abs/2503.01840, section 3; llama.cpp,
src/models/eagle3.cpp
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headstart.extras.distill.model import EPSILON, LanguageModel, Shape, rope_frequencies, rotate
from training.induction import MATCH_DIMS, MATCH_GAIN, NUM_CIRCUITS, Layout

LAYERS = (1, 2, 3)  # of the target, whose inputs the head reads
MAX_AHEAD = 16  # draft tokens behind a row that positions are made for


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Sizes of a head; its width and its attention heads are those of the target."""

    target: Shape
    num_ids: int  # tokens that it can draft
    ff_width: int

    @property
    def group(self) -> int:
        """Query heads for each KV head."""
        return self.target.num_heads // self.target.num_kv_heads


class Caches:
    """Keys and values of one batch: of the text, and of every row's own draft.

    A row of the draft's step s stands s places behind the text that it continues: it sees the text
    up to there and the draft's own earlier rows.
    """

    def __init__(self, num_rows: int, shape: HeadShape, device: torch.device) -> None:
        positions = torch.arange(num_rows + MAX_AHEAD, device=device)[:, None]
        angles = positions * rope_frequencies(shape.target.head_size).to(device)
        self._cos, self._sin = angles.cos(), angles.sin()
        self._mask = torch.ones(num_rows, num_rows, dtype=torch.bool, device=device).tril()
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._group = shape.group

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of the next step's rows; adds their keys and values."""
        step, rows = len(self._keys), queries.shape[2]
        cos, sin = (table[step : step + rows] for table in (self._cos, self._sin))
        queries, keys = rotate(queries, cos, sin), rotate(keys, cos, sin)
        self._keys.append(keys.repeat_interleave(self._group, 1))
        self._values.append(values.repeat_interleave(self._group, 1))
        scale = queries.shape[-1] ** -0.5
        text = (queries @ self._keys[0].transpose(2, 3) * scale).masked_fill(
            ~self._mask, float("-inf")
        )
        own = [(queries * k).sum(-1, keepdim=True) * scale for k in self._keys[1:]]
        weights = torch.cat((text, *own), -1).softmax(-1)
        mixed = weights[..., :rows] @ self._values[0]
        for index, value in enumerate(self._values[1:]):
            mixed = mixed + weights[..., rows + index, None] * value
        return mixed


class Head(nn.Module):
    """One layer over pairs of a token and a mixed state."""

    def __init__(self, shape: HeadShape, target: LanguageModel, ids: Tensor) -> None:
        super().__init__()
        self.shape, width, inputs = shape, shape.target.width, 2 * shape.target.width
        kv_width = shape.target.num_kv_heads * shape.target.head_size
        self.fc = nn.Linear(len(LAYERS) * width, width, bias=False)
        self.attn_norm, self.attn_norm_2 = (nn.RMSNorm(width, EPSILON) for _ in range(2))
        self.attn_q = nn.Linear(inputs, width, bias=False)
        self.attn_k = nn.Linear(inputs, kv_width, bias=False)
        self.attn_v = nn.Linear(inputs, kv_width, bias=False)
        self.attn_output = nn.Linear(width, width, bias=False)
        self.ffn_norm = nn.RMSNorm(width, EPSILON)
        self.ffn_gate = nn.Linear(width, shape.ff_width, bias=False)
        self.ffn_up = nn.Linear(width, shape.ff_width, bias=False)
        self.ffn_down = nn.Linear(shape.ff_width, width, bias=False)
        self.output_norm = nn.RMSNorm(width, EPSILON)
        self.output = nn.Linear(width, shape.num_ids, bias=False)
        self._start_like(target, ids)
        self._add_copying(Layout.of(shape.target))

    @torch.no_grad()
    def _start_like(self, target: LanguageModel, ids: Tensor) -> None:
        """Small matrices; the state is what enters the last layer; the output is the target's."""
        width = self.shape.target.width
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)
        self.fc.weight.zero_()
        self.fc.weight[:, -width:] = torch.eye(width)
        self.output.weight.copy_(target.output.weight[ids])
        self.output_norm.weight.copy_(target.output_norm.weight)

    @torch.no_grad()
    def _add_copying(self, layout: Layout) -> None:
        """Attend to places whose previous token is this one; expect what stands there."""
        size, width = self.shape.target.head_size, self.shape.target.width
        self.fc.weight[layout.guess] = 0  # of the token that is known by now
        for circuit in range(NUM_CIRCUITS):
            first = circuit * self.shape.group * size
            query, kv = slice(first, first + size), slice(circuit * size, circuit * size + size)
            for matrix, rows in ((self.attn_q, query), (self.attn_k, kv), (self.attn_v, kv)):
                matrix.weight[rows] = 0
            self.attn_output.weight[:, query] = 0
            projection = torch.linalg.qr(torch.randn(layout.size, MATCH_DIMS))[0].T * MATCH_GAIN
            self.attn_q.weight[query.stop - MATCH_DIMS : query.stop, layout.content] = projection
            seen = slice(width + layout.content.start, width + layout.content.stop)
            self.attn_k.weight[kv.stop - MATCH_DIMS : kv.stop, seen] = projection
            source, aim = (layout.half(part, circuit) for part in (layout.content, layout.guess))
            for i in range(source.stop - source.start):
                self.attn_v.weight[kv.start + i, source.start + i] = layout.norm(1)
                self.attn_output.weight[aim.start + i, query.start + i] = 1

    def forward(self, embedded: Tensor, state: Tensor, caches: Caches) -> tuple[Tensor, Tensor]:
        """Logits and the state that the next token goes on with, shape (batch, rows, width)."""
        both = torch.cat((self.attn_norm(embedded), self.attn_norm_2(state)), -1)
        queries, keys, values = (
            self._heads(part(both)) for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        mixed = caches.attend(queries, keys, values)
        x = state + self.attn_output(mixed.transpose(1, 2).flatten(2))
        hidden = self.ffn_norm(x)
        x = x + self.ffn_down(F.silu(self.ffn_gate(hidden)) * self.ffn_up(hidden))
        return self.output(self.output_norm(x)), x

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.shape.target.head_size)).transpose(1, 2)
