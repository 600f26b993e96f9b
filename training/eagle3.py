"""Train an EAGLE-3 head for a demo model, on what the model itself predicts.

    python -m training.eagle3 --work DIR --target demo-target.gguf --seconds 600 -o demo-eagle3.gguf

The head learns the target's probabilities for the text that `training.corpus` made, several tokens
ahead: from the second on it goes on with its own states, as it does when it drafts. It knows the
tokens that the target predicts most often; the rest are never drafted.

Source: Li et al. 2025, https://arxiv.org/abs/2503.01840, section 3
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, TokenType, dequantize, quantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

from training.batches import Rows, load
from training.export import CONTEXT, Q8_0
from training.model import EPSILON, ROPE_BASE, LanguageModel, Shape, rope_frequencies, rotate
from training.train import Budget, choose_device

LAYERS = (1, 2, 3)  # of the target, whose inputs the head reads
RATE = 2e-3
WARMUP_STEPS = 30
STEP_WEIGHT = 0.8  # of each token ahead, compared with the one before it
COUNTED_BATCHES = 12  # batches that say which tokens the target predicts most often


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Sizes of a head."""

    target_width: int
    vocab_size: int
    num_ids: int = 1536  # tokens that it can draft
    width: int = 128
    num_heads: int = 2
    num_kv_heads: int = 2
    ff_width: int = 384

    @property
    def head_size(self) -> int:
        return self.width // self.num_heads


class Head(nn.Module):
    """One layer over pairs of a token and a mixed state, named as in the GGUF."""

    def __init__(self, shape: HeadShape, embeddings: Tensor) -> None:
        super().__init__()
        self.shape = shape
        width, inputs = shape.width, 2 * shape.width
        kv_width = shape.num_kv_heads * shape.head_size
        self.token_embd = nn.Embedding(shape.vocab_size, width)
        self.fc = nn.Linear(len(LAYERS) * shape.target_width, width, bias=False)
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
        self._start_with(embeddings)

    def _start_with(self, embeddings: Tensor) -> None:
        """The target's embeddings, as well as they fit into this width."""
        basis = torch.linalg.svd(embeddings, full_matrices=False).Vh[: self.shape.width]
        self.token_embd.weight.data = embeddings @ basis.T

    def forward(self, tokens: Tensor, state: Tensor, caches: Caches) -> tuple[Tensor, Tensor]:
        """Logits and the state that the next token goes on with, shape (batch, rows, width)."""
        both = torch.cat((self.attn_norm(self.token_embd(tokens)), self.attn_norm_2(state)), -1)
        queries, keys, values = (
            self._heads(part(both)) for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        mixed = caches.attend(queries, keys, values)
        x = state + self.attn_output(mixed.transpose(1, 2).flatten(2))
        hidden = self.ffn_norm(x)
        x = x + self.ffn_down(F.silu(self.ffn_gate(hidden)) * self.ffn_up(hidden))
        return self.output(self.output_norm(x)), x

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.shape.head_size)).transpose(1, 2)


class Caches:
    """Keys and values of one batch: of the text, and of every row's own draft.

    A row of the draft's step s stands s places behind the text that it continues: it sees the text
    up to there and the draft's own earlier rows.
    """

    def __init__(self, num_rows: int, head_size: int, device: torch.device, group: int) -> None:
        angles = torch.arange(num_rows + 16, device=device)[:, None] * rope_frequencies(
            head_size
        ).to(device)
        self._cos, self._sin = angles.cos(), angles.sin()
        self._mask = torch.ones(num_rows, num_rows, dtype=torch.bool, device=device).tril()
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._group = group

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


class Trainer:
    """A head, its target and its rows."""

    def __init__(self, target: LanguageModel, text: Tokenizer, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.target, self.num_steps, self.batch_size = target, args.ahead, args.batch_size
        self.device = choose_device(args.device)
        target.to(self.device)
        self.rows = Rows(load(args.work, text, args.context - 48), args.context, args.seed)
        self.shape = HeadShape(target.shape.width, target.shape.vocab_size, args.ids)
        self.ids = self._most_frequent()
        head = Head(self.shape, target.token_embd.weight.data.cpu())
        self.head = head.to(self.device)
        self.adam = torch.optim.AdamW(
            self.head.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0
        )

    def _most_frequent(self) -> Tensor:
        """Ids that the target predicts most often, in order of their numbers."""
        counts = torch.zeros(self.shape.vocab_size, device=self.device)
        for _ in range(COUNTED_BATCHES):
            _, logits = self._look(self._tokens())
            counts += logits.softmax(-1).sum((0, 1))
        return counts.topk(self.shape.num_ids).indices.sort().values

    def _tokens(self) -> Tensor:
        ids, _ = self.rows.batch(self.batch_size, repeat_share=0.05)
        return torch.from_numpy(ids).long().to(self.device)

    @torch.no_grad()
    def _look(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What enters the target's layers, side by side, and its logits."""
        x, entered = self.target.token_embd(tokens), []
        cos, sin = (table[: tokens.shape[1]] for table in (self.target.cos, self.target.sin))
        for index, block in enumerate(self.target.blocks):
            if index in LAYERS:
                entered.append(x)
            x = block(x, cos, sin)
        return torch.cat(entered, -1), self.target.output(self.target.output_norm(x))

    def step(self, number: int, progress: float) -> list[float]:
        """Train on one batch; returns the shares of tokens that were right, by step ahead."""
        tokens = self._tokens()
        features, logits = self._look(tokens)
        wanted = logits[..., self.ids].softmax(-1)
        best = logits.argmax(-1)
        rows = tokens.shape[1] - self.num_steps - 1
        group = self.shape.num_heads // self.shape.num_kv_heads
        caches = Caches(rows, self.shape.head_size, self.device, group)
        state = self.head.fc(features[:, :rows])
        loss, right = torch.zeros((), device=self.device), []
        for ahead in range(1, self.num_steps + 1):
            out, state = self.head(tokens[:, ahead : ahead + rows], state, caches)
            aim = wanted[:, ahead : ahead + rows]
            loss = loss - STEP_WEIGHT ** (ahead - 1) * (aim * out.log_softmax(-1)).sum(-1).mean()
            found = self.ids[out.argmax(-1)] == best[:, ahead : ahead + rows]
            right.append(found.float().mean().item())
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        scale = min(1.0, (number + 1) / WARMUP_STEPS) * max(0.02, min(1.0, (1 - progress) / 0.6))
        for group_of in self.adam.param_groups:
            group_of["lr"] = RATE * scale
        self.adam.step()
        self.adam.zero_grad()
        return right


def load_target(reader: GGUFReader) -> LanguageModel:
    """The model of a GGUF in PyTorch, with the weights as the GGUF has them."""
    weights = {
        t.name.replace("blk.", "blocks."): torch.from_numpy(
            dequantize(t.data, t.tensor_type).astype(np.float32)
        )
        for t in reader.tensors
    }

    def number(key: str) -> int:
        return int(reader.fields[f"llama.{key}"].contents())

    vocab_size, width = weights["token_embd.weight"].shape
    shape = Shape(
        vocab_size,
        width,
        number("block_count"),
        number("attention.head_count"),
        number("attention.head_count_kv"),
        number("feed_forward_length"),
    )
    model = LanguageModel(shape, CONTEXT)
    model.load_state_dict(weights)
    return model.requires_grad_(False)


def load_tokenizer(reader: GGUFReader) -> Tokenizer:
    """The tokenizer of a GGUF, so that the text is cut as the model knows it."""
    tokens, merges, types = (
        reader.fields[f"tokenizer.ggml.{name}"].contents()
        for name in ("tokens", "merges", "token_type")
    )
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, types, strict=True) if kind != TokenType.NORMAL]
    made.add_special_tokens([AddedToken(token, special=True) for token in special])
    return made


def export(head: Head, ids: Tensor, target: GGUFReader, output: Path) -> None:
    """Write the head as GGUF: matrices Q8_0, the map from its ids to the target's."""
    shape, writer = head.shape, GGUFWriter(output, "eagle3")
    writer.add_name(output.stem)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(shape.ff_width)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_array("eagle3.target_layers", list(LAYERS))
    writer.add_uint32("eagle3.target_hidden_size", shape.target_width)
    for field in target.fields.values():
        if field.name.startswith("tokenizer."):
            kinds = field.types
            writer.add_key_value(field.name, field.contents(), kinds[0], *kinds[1:2])
    whole = ("token_embd", "fc", "output", "output_norm")
    for name, tensor in head.state_dict().items():
        full = name if name.split(".")[0] in whole else f"blk.0.{name}"
        values = tensor.float().cpu().numpy()
        if values.ndim == 2:
            writer.add_tensor(full, quantize(values, Q8_0), raw_dtype=Q8_0)
        else:
            writer.add_tensor(full, values)
    writer.add_tensor(
        "d2t", ids.cpu().numpy().astype(np.int64), raw_dtype=GGMLQuantizationType.I64
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description="Train an EAGLE-3 head for a demo model.")
    parser.add_argument("--work", type=Path, required=True, help="folder with the corpus")
    parser.add_argument("--target", type=Path, required=True, metavar="GGUF")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="GGUF")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--steps", type=int, help="stop after this many batches")
    parser.add_argument("--context", type=int, default=256, help="tokens in a row")
    parser.add_argument("--batch-size", type=int, default=8, help="rows in a batch")
    parser.add_argument("--ahead", type=int, default=4, help="tokens ahead that it learns")
    parser.add_argument("--ids", type=int, default=1536, help="tokens that it can draft")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.seconds is None and args.steps is None:
        parser.error("say how long to train: --seconds or --steps")
    reader = GGUFReader(args.target)
    trainer = Trainer(load_target(reader), load_tokenizer(reader), args)
    budget = Budget(args.steps, args.seconds)
    start, step, average = time.monotonic(), 0, np.zeros(args.ahead)
    while (progress := budget.progress(step, time.monotonic() - start)) < 1:
        right = np.array(trainer.step(step, progress))
        average = right if step == 0 else 0.98 * average + 0.02 * right
        step += 1
        if step % 50 == 0:
            shares = " ".join(f"{share:.3f}" for share in average)
            print(f"step {step}, {time.monotonic() - start:.0f} s, right {shares}", flush=True)
    export(trainer.head, trainer.ids, reader, args.output)
    print(f"{args.output}: {step} steps, {args.output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
